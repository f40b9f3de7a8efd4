"""``python -m tools.benchmarks``: every figure of docs/performance.md, measured on this machine;
asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from pathlib import Path
from typing import Any

from es_queue.numerics.fingerprint import fix_numeric_environment, limit_blas_threads

fix_numeric_environment()  # before numpy is loaded

from tools.benchmarks import machine, report  # noqa: E402
from tools.benchmarks.figures import Row  # noqa: E402
from tools.benchmarks.runs import HOUSE, scratch  # noqa: E402
from tools.benchmarks.suite import MEASURES, rows_of  # noqa: E402

PAGE = HOUSE / "docs" / "performance.md"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=report.COMMAND,
        description=(
            "Measure es-queue on this machine, or write docs/performance.md from what was measured."
        ),
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="how often each figure is measured [default: 5]"
    )
    parser.add_argument("--only", metavar="NAME,…", help=f"only these: {', '.join(MEASURES)}")
    parser.add_argument(
        "--quick", action="store_true", help="see that everything runs; the figures mean nothing"
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="keep the figures; those of other measurements in the file stay",
    )
    parser.add_argument(
        "--state",
        type=Path,
        metavar="FILE",
        help=(
            "the trained state to begin with, written there when it is missing [default: train "
            "one each time]"
        ),
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="measure nothing: write docs/performance.md from the figures in FILE",
    )
    given = parser.parse_args()
    unknown = set((given.only or "").split(",")) - {*MEASURES, ""}
    if unknown:
        parser.error(
            f"there is no measurement {', '.join(sorted(unknown))}; there are {', '.join(MEASURES)}"
        )
    if given.repeats < 1:
        parser.error(f"--repeats is {given.repeats}, but a figure is measured at least once")
    return given


def main() -> int:
    given = arguments()
    if given.report:
        before = PAGE.read_text() if PAGE.exists() else ""
        PAGE.write_text(report.document(json.loads(given.report.read_text()), before))
        return 0
    limit_blas_threads()
    names = [name for name in MEASURES if not given.only or name in given.only.split(",")]
    found, failed = measured(given, names), 0
    for name, rows in found.items():
        failed += not rows
        if not rows:
            print(f"{name}: failed, see above", file=sys.stderr)
    return 1 if failed else 0


def measured(given: argparse.Namespace, names: list[str]) -> dict[str, list[Row]]:
    """Rows by measurement, printed as they come, and kept after each: a whole suite takes
    its time.
    """
    about, found = machine.about(), dict[str, list[Row]]()
    with scratch(1 if given.quick else given.repeats, given.quick, given.state) as bench:
        for name in names:
            try:
                found[name] = rows_of(name, bench)
            except Exception:  # one that fails does not cost the others
                traceback.print_exc()
                found[name] = []
            for row in found[name]:
                print(report.line(row), flush=True)
            if given.json:
                keep(
                    given.json,
                    about | ({"quick": "yes"} if given.quick else {}),
                    bench.repeats,
                    found,
                )
    return found


def keep(path: Path, about: dict[str, str], repeats: int, found: dict[str, list[Row]]) -> None:
    """Write the figures, with those of other measurements that the file holds already, in the order
    of the suite.
    """
    before: dict[str, Any] = json.loads(path.read_text())["measurements"] if path.exists() else {}
    rows = {
        **before,
        **{name: [row.to_dict() for row in one] for name, one in found.items() if one},
    }
    ordered = {name: rows[name] for name in MEASURES if name in rows}
    flat = [row for one in ordered.values() for row in one]
    path.write_text(
        json.dumps(
            {"machine": about, "repeats": repeats, "measurements": ordered, "rows": flat}, indent=1
        )
    )


if __name__ == "__main__":
    sys.exit(main())
