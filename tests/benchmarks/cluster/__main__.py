"""``python -m tests.benchmarks.cluster``: the scale table, or parts of it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from es_queue.numerics import fix_numeric_environment

fix_numeric_environment()

from tests.benchmarks.cluster import advice, rows  # noqa: E402 - numpy loads with them
from tests.benchmarks.cluster.durations import CONSTANT, HEAVY, KINDS, RECORDED  # noqa: E402
from tests.benchmarks.cluster.live import HUMANOID, real  # noqa: E402
from tests.benchmarks.cluster.record import record  # noqa: E402

PARTS = ("real", "simulated", "overhead", "traffic", "connections")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.cluster", description="A simulated cluster; figures, never asserted.")
    parser.add_argument("--only", choices=PARTS, help="one part of the table")
    parser.add_argument("--quick", action="store_true", help="small sizes, a minute; no figures to quote")
    parser.add_argument("--workers", type=int, default=0, help="one run of so many workers, with --only real or simulated")
    parser.add_argument("--durations", choices=KINDS, default=RECORDED)
    parser.add_argument("--population", type=int, default=0, help="0 for a generation of about ten seconds")
    parser.add_argument("--generations", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--raw", type=Path, nargs="+", metavar="FILE", help="rows of earlier real runs: fit and simulate from these")
    parser.add_argument("--save-fit", action="store_true", help="keep the service times as those of docs/scale.md")
    parser.add_argument("--advice", action="store_true", help="print the advice of docs/scale.md, from the kept service times")
    parser.add_argument("--record", type=Path, metavar="FILE", help="record BipedalWalker's episodes there, in ten minutes")
    return parser.parse_args()


def found(given: argparse.Namespace) -> dict[str, Any]:
    """What was asked for."""
    chosen = {"durations": given.durations, "population": given.population, "generations": given.generations}
    if given.raw:
        every = [json.loads(path.read_text()) for path in given.raw]
        shape = [row for row in every if row.get("size", 0) > 100_000]
        return rows.from_rows([row for row in every if row.get("size", 0) <= 100_000], shape[0])
    if given.only == "real":
        return real(given.workers or 18, **chosen)
    if given.only == "simulated":
        sizes = [given.workers] if given.workers else rows.SIMULATED
        return {"simulated": [rows.simulated(workers, **chosen) for workers in sizes]}
    if given.only == "overhead":
        return {"overhead": rows.overhead(real(180, CONSTANT, population=rows.EPISODES, shape=HUMANOID))}
    if given.only == "traffic":
        return {"traffic": rows.traffic(real(rows.FLEET, HEAVY, population=rows.EPISODES, generations=4, shape=HUMANOID, per_host=rows.FLEET // rows.HOSTS))}
    if given.only == "connections":
        return {"connections": rows.connections(given.workers or rows.CONNECTIONS)}
    return rows.all_rows(given.quick)


def shares(found: dict[str, float]) -> str:
    return ", ".join(f"{name} {share:.1%}" for name, share in found.items())


def real_line(row: dict[str, Any]) -> str:
    return f"efficiency {row['efficiency']:6.1%} (bound {row['bound']:6.1%})  {row['blocks_per_second']:6.0f} blocks/s  played twice {row['played_twice']:.1%}  CPU of a core: {shares(row['cpu'])}"


def agreement_line(row: dict[str, Any]) -> str:
    return f"real {row['real']:6.1%} simulated {row['simulated']:6.1%}: {row['points']:+.2f} points; gap {row['gap_real']:.3f} and {row['gap_simulated']:.3f} s"


def simulated_line(row: dict[str, Any]) -> str:
    return f"efficiency {row['efficiency']:6.1%} (bound {row['bound']:6.1%})  network {1000 * row.get('delay', 0):.1f} ms  gap {row['gap']:.3f} s  busy: {shares(row['cpu'])}"


def control_line(row: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:.0f}/s" for name, value in row["control"].items() if name != "workers")


def text(result: dict[str, Any]) -> str:
    """The figures for people, a line each."""
    kinds = (("real", "real", real_line), ("agreement", "agreement", agreement_line), ("simulated", "simulated", simulated_line), ("control", "real", control_line))
    lines = []
    for title, name, line in kinds:
        for row in result.get(name, []):
            said = "came to a standstill" if row.get("standstill") else line(row)
            lines.append(f"{title:10}{row['workers']:5} {row['durations']:9} {said}")
    lines += [f"real      {row['workers']:5} {row['durations']:9} did not end: {json.dumps(row['stood'])}" for row in result.get("not_completed", [])]
    lines += [f"{name}: {json.dumps(result[name])}" for name in ("overhead", "traffic", "connections", "services") if name in result]
    return "\n".join(lines) or json.dumps(result, indent=1)


def main() -> None:
    given = parsed()
    if given.record:
        print(record(given.record, 500))
        return
    if given.advice:
        print(advice.page(rows.shipped()))
        return
    result = found(given)
    if given.save_fit:
        rows.FITTED.write_text(json.dumps(result["services"], indent=1) + "\n")
    if given.json:
        given.json.write_text(json.dumps(result, indent=1))
    print(text(result))


if __name__ == "__main__":
    main()
