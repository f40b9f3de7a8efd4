"""``python -m tools.results``: trains, measures, compares and writes the rows of docs/results.md.

A row of docs/results.json has the command, a published figure, and every run. Many rows are of
Gymnasium's environment as ``gymnasium.make`` gives it, played with only ``load_policy``, whichever
back end trained the policy.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from pathlib import Path

from es_queue.numerics.fingerprint import fix_numeric_environment

fix_numeric_environment()  # before numpy is loaded

from es_queue.text import parse_number_ranges  # noqa: E402
from tools.results.measure import EPISODES, measure, train  # noqa: E402
from tools.results.page import mean_and_std, write_page  # noqa: E402
from tools.results.stored import (  # noqa: E402
    StoredRow,
    StoredRun,
    find_row,
    load_rows,
    write_rows,
)

SAME, CLOSE, DIFFERENT = "the same", "within three standard errors", "DIFFERENT"


def main(argv: list[str] | None = None) -> int:
    """Returns 1 if a reproduced mean differs by more than three standard errors, and 2 for an
    unknown row or seed, or if es-master fails.
    """
    given = make_parser().parse_args(argv)
    try:
        rows = load_rows()
        if given.command == "write":
            write_page(rows)
            return 0
        row = find_row(rows, given.environment)
        if given.command == "train":
            train(row, parse_seeds(given.seeds), given.folder)
        elif given.command == "record":
            record(rows, row, given.folder)
        else:
            return reproduce(row, given.seeds)
    except (ValueError, RuntimeError) as error:
        print(f"tools.results: {error}", file=sys.stderr)
        return 2
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.results", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    train_seeds = commands.add_parser("train", help="train seeds of a row into a folder")
    record_runs = commands.add_parser("record", help="measure a folder's runs, and store them")
    again = commands.add_parser("reproduce", help="train stored seeds again, and compare")
    commands.add_parser("write", help="write the page from docs/results.json")
    for command in (train_seeds, record_runs, again):
        command.add_argument("environment", help="a row's name, such as CartPole-v1")
    train_seeds.add_argument("--seeds", required=True, metavar="LIST", help="such as 1-10")
    again.add_argument("--seeds", metavar="LIST", help="only these of its seeds")
    for command in (train_seeds, record_runs):
        command.add_argument("folder", type=Path, help="of the runs, one folder sN for each seed N")
    return parser


def parse_seeds(text: str) -> list[int]:
    return list(parse_number_ranges(text, "seed", 100, 10**9))


def record(rows: list[StoredRow], row: StoredRow, folder: Path) -> None:
    """Store a folder's runs in place of those of the same seeds, and write the page."""
    rows[rows.index(row)] = row.with_runs(measure(row, folder))
    write_rows(rows)
    write_page(rows)


def reproduce(row: StoredRow, seeds: str | None) -> int:
    """Print each seed's comparison with its stored run."""
    stored = [row.run(seed) for seed in parse_seeds(seeds)] if seeds else list(row.runs)
    with tempfile.TemporaryDirectory() as folder:
        train(row, [run.seed for run in stored], Path(folder))
        again = measure(row, Path(folder))
    verdicts = []
    for new in again:
        old = row.run(new.seed)
        verdicts.append(compare(old, new, row.digits))
        print(
            f"{row.environment}, seed {new.seed}: {mean_and_std(new, row.digits)}, stored "
            f"{mean_and_std(old, row.digits)}: {verdicts[-1]}"
        )
    return int(DIFFERENT in verdicts)


def compare(stored: StoredRun, run: StoredRun, digits: int) -> str:
    """Whether a run has the stored digest and, as printed, the stored return. On another back end
    or machine, the mean may differ by three standard errors of the difference of two means of
    ``EPISODES``.
    """
    if (mean_and_std(run, digits), run.digest) == (mean_and_std(stored, digits), stored.digest):
        return SAME
    error = math.hypot(stored.std, run.std) / math.sqrt(EPISODES)
    return CLOSE if abs(run.mean - stored.mean) <= 3 * error else DIFFERENT


if __name__ == "__main__":
    sys.exit(main())
