"""``python -m tools.benchmarks.cluster``: the scale table, or parts of it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from es_queue.numerics.fingerprint import fix_numeric_environment

fix_numeric_environment()

from tools.benchmarks.cluster import advice, scale_page, scale_table  # noqa: E402 - numpy loads with them
from tools.benchmarks.cluster.live import ROOT, real  # noqa: E402
from tools.benchmarks.cluster.record import record  # noqa: E402
from tools.benchmarks.cluster.simulation.durations import KINDS, RECORDED  # noqa: E402

PARTS = ("real", "simulated")
PAGE = ROOT / "docs" / "scale.md"
BRIEF = (
    "workers",
    "durations",
    "schedule",
    "population",
    "efficiency",
    "seconds",
    "played_twice",
    "refused",
    "lag",
    "late",
    "cpu",
    "timers_late",
    "blocks_per_second",
    "stood",
    "before_others",
)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.benchmarks.cluster",
        description="A simulated cluster; figures, never asserted.",
    )
    parser.add_argument("--all", action="store_true", help="every row, in half an hour")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="with --all: small sizes, two minutes; no figures to quote",
    )
    parser.add_argument(
        "--row",
        metavar="NAME",
        help="one real run of --all by its name, to --json for --raw; --row list tells the names",
    )
    parser.add_argument("--only", choices=PARTS, help="one run of --workers")
    parser.add_argument("--workers", type=int, default=18)
    parser.add_argument("--durations", choices=KINDS, default=RECORDED)
    parser.add_argument(
        "--schedule", choices=scale_table.SCHEDULES, default=scale_table.SCHEDULES[0]
    )
    parser.add_argument(
        "--population", type=int, default=0, help="0 for a generation of about ten seconds"
    )
    parser.add_argument("--generations", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument(
        "--raw",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="measure nothing: fit and simulate from these real runs",
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="measure nothing: write docs/scale.md and the service times from what --json kept",
    )
    parser.add_argument(
        "--advice",
        action="store_true",
        help="print how many workers are carried, from the kept service times",
    )
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="record BipedalWalker's episodes there, in ten minutes",
    )
    return parser.parse_args()


def found(given: argparse.Namespace) -> dict[str, Any]:
    """What was asked for."""
    chosen = {
        "durations": given.durations,
        "population": given.population,
        "generations": given.generations,
        "schedule": given.schedule,
    }
    if given.raw:
        return scale_table.from_rows([json.loads(path.read_text()) for path in given.raw])
    if given.row:
        return scale_table.one_row(given.row, given.quick)
    if given.only == "real":
        return real(given.workers, **chosen)
    if given.only == "simulated":
        return {"simulated": [scale_table.simulated(given.workers, **chosen)]}
    return scale_table.all_rows(given.quick)


def shares(found: dict[str, float]) -> str:
    return ", ".join(f"{name} {share:.1%}" for name, share in found.items())


def real_line(row: dict[str, Any]) -> str:
    return (
        f"efficiency {row['efficiency']:6.1%} (bound {row['bound']:6.1%})  "
        f"{row['blocks_per_second']:6.0f} blocks/s  played twice {row['played_twice']:.1%}  CPU "
        f"of a core: {shares(row['cpu'])}"
    )


def agreement_line(row: dict[str, Any]) -> str:
    return (
        f"real {row['real']:6.1%} simulated {row['simulated']:6.1%}: {row['points']:+.2f} "
        f"points; gap {row['gap_real']:.3f} and {row['gap_simulated']:.3f} s"
    )


def simulated_line(row: dict[str, Any]) -> str:
    return (
        f"efficiency {row['efficiency']:6.1%} (bound {row['bound']:6.1%})  network "
        f"{1000 * row.get('delay', 0):.1f} ms  gap {row['gap']:.3f} s  busy: {shares(row['cpu'])}"
    )


def control_line(row: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.0f}/s" for name, value in row["control"].items() if name != "workers"
    )


def text(result: dict[str, Any]) -> str:
    """The figures for people, a line each."""
    kinds = (
        ("real", "real", real_line),
        ("agreement", "agreement", agreement_line),
        ("simulated", "simulated", simulated_line),
        ("control", "real", control_line),
    )
    lines = []
    for title, name, line in kinds:
        for row in result.get(name, []):
            said = "came to a standstill" if row.get("standstill") else line(row)
            lines.append(
                f"{title:10}{row['workers']:5} {row['durations']:9}{row['schedule']:6} {said}"
            )
    lines += [
        f"real      {row['workers']:5} {row['durations']:9} did not end: {json.dumps(row['stood'])}"
        for row in result.get("not_completed", [])
    ]
    lines += [
        f"{name}: {json.dumps(result[name])}"
        for name in ("overhead", "traffic", "connections", "services")
        if name in result
    ]
    return "\n".join(lines) or json.dumps(result, indent=1)


def main() -> None:
    given = parsed()
    if given.record:
        print(record(given.record, 500))
    elif given.advice:
        print(advice.page(scale_table.shipped()))
    elif given.row == "list":
        print("\n".join(name for name, _ in scale_table.planned(given.quick)))
    elif given.report:
        result = json.loads(given.report.read_text())
        scale_table.FITTED.write_text(json.dumps(result["services"], indent=1) + "\n")
        PAGE.write_text(scale_page.document(result, PAGE.read_text() if PAGE.exists() else ""))
    elif given.all or given.row or given.only or given.raw:
        result = found(given)
        if given.json:
            given.json.write_text(json.dumps(result, indent=None if given.row else 1))
        print(
            text(result)
            if not given.row
            else json.dumps({name: result.get(name) for name in BRIEF})
        )
    else:
        print("nothing was asked for: --all measures everything, --help tells the rest")


if __name__ == "__main__":
    main()
