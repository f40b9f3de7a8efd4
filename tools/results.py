"""``python -m tools.results STUDY…``: the rows of docs/results.md, from folders that ``es-master
--seeds`` left. ``--reproduce ENVIRONMENT`` trains a row of the page again, and compares.

Every chosen policy plays the seeds of its run's final evaluation once more, in Gymnasium's
environment as ``gymnasium.make`` gives it, by nothing but ``load_policy``: whatever trained it, on
whatever back end.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from es_queue.numerics.fingerprint import fix_numeric_environment

fix_numeric_environment()  # before numpy is loaded

import gymnasium  # noqa: E402

from es_queue import load_policy  # noqa: E402
from es_queue.config.parsing import config_from_json  # noqa: E402
from es_queue.environments.registry import register_bundled_ids  # noqa: E402
from es_queue.numerics.aggregates import aggregate  # noqa: E402
from es_queue.numerics.slot_plan import FINAL, evaluation_seeds  # noqa: E402
from es_queue.util.number_ranges import parse_number_ranges  # noqa: E402
from tools.results_table import PAGE, Figure, StoredRow, stored_row  # noqa: E402

EPISODES = 100
CLOSE, DIFFERENT = "within three standard errors", "DIFFERENT"


@dataclass(frozen=True)
class Played:
    """One run: its seed, counted training steps, seconds of training, and ``EPISODES`` returns in
    stock Gymnasium.
    """

    seed: int
    env_steps: int
    seconds: float
    mean: float
    std: float
    least: float


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.results",
        description=(
            "Play the runs of studies in stock Gymnasium, and print a row of docs/results.md for "
            "each; or train such a row again."
        ),
    )
    parser.add_argument("studies", nargs="*", type=Path, metavar="STUDY", help="folder of a study")
    parser.add_argument("--json", action="store_true", help="print every run's figures too")
    parser.add_argument(
        "--reproduce", metavar="ENVIRONMENT", help="train this row of the page again, and compare"
    )
    parser.add_argument("--seeds", metavar="LIST", help="with --reproduce: only these of its seeds")
    given = parser.parse_args(argv)
    if bool(given.studies) == bool(given.reproduce):
        parser.error("name the folder of a study, or --reproduce ENVIRONMENT, and not both")
    if given.reproduce:
        return reproduce(given.reproduce, given.seeds)
    if given.seeds:
        parser.error("--seeds belongs to --reproduce")
    for study in given.studies:
        runs = played_study(study)
        if given.json:
            print(*(json.dumps(asdict(run)) for run in runs), sep="\n")
        print(row(study.name, runs))
    return 0


def reproduce(environment: str, seeds: str | None) -> int:
    """Train seeds of a row of docs/results.md by its command, and print each seed's comparison with
    the page. Returns 1 if a mean differs by more than three standard errors, and 2 for an unknown
    row or seed, or if es-master fails.
    """
    try:
        stored = stored_row(environment, PAGE.read_text())
        chosen = chosen_seeds(stored, seeds)
    except ValueError as error:
        print(f"tools.results: {error}", file=sys.stderr)
        return 2
    listed = ",".join(map(str, chosen))
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "master.cli.main", *stored.command[1:]]
        command += ["--seeds", listed, "--workers", "1", "--run-dir", f"{folder}/study"]
        if code := subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode:
            print(f"tools.results: es-master ended with {code}", file=sys.stderr)
            return 2
        runs = played_study(Path(folder) / "study")
    verdicts = [compare(stored.figures[run.seed], run) for run in runs]
    for run, verdict in zip(runs, verdicts, strict=True):
        page = stored.figures[run.seed]
        print(
            f"{environment}, seed {run.seed}: {printed(run, page.digits)}, on the page "
            f"{printed(page, page.digits)}: {verdict}"
        )
    return int(DIFFERENT in verdicts)


def chosen_seeds(stored: StoredRow, text: str | None) -> tuple[int, ...]:
    """The seeds of a list such as ``1-3``, or all of a row. Raises ValueError for another seed."""
    if text is None:
        return tuple(stored.figures)
    seeds = parse_number_ranges(text, "seed", 100, 10**9)
    for seed in seeds:
        if seed not in stored.figures:
            known = ", ".join(map(str, stored.figures))
            raise ValueError(
                f"cannot use seed {seed}: the row {stored.environment} has the seeds {known}"
            )
    return seeds


def compare(page: Figure, run: Played) -> str:
    """Whether a run has the page's figure, to its digits. On another back end or machine, the mean
    may differ by three standard errors of the difference of two means of ``EPISODES``.
    """
    if printed(run, page.digits) == printed(page, page.digits):
        return "the same"
    error = math.hypot(page.std, run.std) / math.sqrt(EPISODES)
    return CLOSE if abs(run.mean - page.mean) <= 3 * error else DIFFERENT


def printed(figure: Figure | Played, digits: int) -> str:
    return f"{figure.mean:.{digits}f} ± {figure.std:.{digits}f}"


def played_study(study: Path) -> list[Played]:
    """The runs of a study, by seed."""
    with ProcessPoolExecutor(1) as pool:  # environments print and warn; they do it elsewhere
        return list(pool.map(played, sorted(study.glob("s*/summary.json"), key=seed_of)))


def seed_of(summary: Path) -> int:
    return int(summary.parent.name[1:])


def played(summary: Path) -> Played:
    """The run in the folder of ``summary``, its best policy played in stock Gymnasium."""
    folder = summary.parent
    told: dict[str, Any] = json.loads(summary.read_text())
    config = config_from_json((folder / "config.json").read_text())
    returns = stock_returns(
        config.env,
        folder / "checkpoints" / "best.npz",
        [int(seed) for seed in evaluation_seeds(config, FINAL, 0, EPISODES)],
    )
    return Played(
        config.seed,
        told["env_steps"],
        told["seconds"],
        statistics.fmean(returns),
        statistics.pstdev(returns),
        min(returns),
    )


def stock_returns(env_id: str, checkpoint: Path, seeds: list[int]) -> list[float]:
    """The return of an episode for each seed, rewards summed in float64."""
    warnings.simplefilter("ignore")
    register_bundled_ids()
    policy, env = load_policy(checkpoint), gymnasium.make(env_id)
    returns = []
    for seed in seeds:
        observation, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(policy.act(observation))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    env.close()
    return returns


def row(name: str, runs: list[Played]) -> str:
    """A line of the table, as Markdown."""
    found = aggregate([run.mean for run in runs])
    low, high = found.iqm_interval or (float("nan"), float("nan"))
    means = ", ".join(printed(run, 1) for run in runs)
    steps, seconds = ([getattr(run, name) for run in runs] for name in ("env_steps", "seconds"))
    return (
        f"| {name} | {len(runs)} | {means} | {found.iqm:.1f} [{low:.1f}, {high:.1f}] | "
        f"{spread(steps, 1e6, 2)} M | {spread(seconds, 1, 0)} s |"
    )


def spread(values: list[float], unit: float, digits: int) -> str:
    """Median, and in brackets the least and the greatest."""
    middle, *ends = (
        f"{value / unit:.{digits}f}"
        for value in (statistics.median(values), min(values), max(values))
    )
    return f"{middle} ({' to '.join(ends)})"


if __name__ == "__main__":
    sys.exit(main())
