"""docs/scale.md from the figures: a pure function of what was measured and of the fitted service
times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from es_queue.config.run_config import ASYNC, SYNC
from tools.benchmarks.cluster import advice
from tools.benchmarks.cluster.services import Services
from tools.benchmarks.cluster.simulation.durations import CONSTANT, HEAVY, RECORDED, SLOW
from tools.benchmarks.report import BY_HAND

Found = Mapping[str, Any]

COMMAND = "python -m tools.benchmarks.cluster"
TARGETS = {SYNC: {18: 0.97, 180: 0.95, 1440: 0.90}, ASYNC: {18: 0.97, 180: 0.97, 1440: 0.97}}
NAMED = {RECORDED: "walker", SLOW: "slow", HEAVY: "heavy", CONSTANT: "constant"}
HEAD = f"""# Scale

## How many workers help for my task?

In the synchronous schedule, a generation ends with its longest episode. So at most *slots × mean \
length ÷ longest length* workers are busy on average. A slot is an individual, or a mirrored pair. \
LunarLanderContinuous (`snes-lander`, 48 slots, the mean a quarter of the longest) keeps 12 \
workers busy, and BipedalWalker (48 to 20 slots, a half) 17. If workers are busy for less than \
three quarters of their time, es-master, `es-status`, its page and the doctor say how many are \
busy, and which `--scale` would use the others.

To use more workers:

- **A larger search** (`--scale K`) has K times the slots, and needs fewer generations. \
[The figure](#time-to-a-threshold) shows the time to a threshold for 1 to 1,440 workers.
- **Several runs** (`--seeds 1-10`) share the workers evenly. Ten synchronous runs of 32 slots \
kept 60 real workers busy for 91 % of their time (82 to 98 % each). Episodes lasted 0.3 to 1.9 s.
- **Asynchronous schedule** (`--schedule async`): no worker waits. A population of 1,000 keeps up \
to 500 workers busy. Its runs do not repeat to the bit.

If episodes are long and of about equal length, a synchronous population of 1,000 keeps up to \
about 110 workers at least 90 % busy. If they are short, it keeps fewer busy. One master and one \
Redis serve up to about 1,200 workers with episodes of 0.02 s, and about 8,600 with episodes of a \
second. [The tables below](#how-many-workers-one-master-and-one-redis-can-serve) have the limits.

## What was measured

The server, es-master and the wire format are real. The workers are simulated, many per process, \
over real connections: they claim a block, wait as long as an episode lasts, and return results. \
The master and the server work in real time. Rows marked *model* come from a discrete-event \
simulation. Its service times were fitted to the real runs, with a network round trip of half a \
millisecond.

These figures were measured on two shared cores beside other work, with priority over it \
(SCHED_RR). Service times are therefore longer than on a quiet machine, by about half \
for Redis, and the modelled efficiencies are conservative.

`{COMMAND} --all --json FILE` measures everything in half an hour. `--row NAME --json ROW` \
measures one real run, and `--raw ROW …` computes the rest from such rows. `{COMMAND} --report \
FILE` writes this page.

| episodes | how long they last |
|---|---|
| walker | recorded from a training of BipedalWalker: 21 ms on average, the longest pair 0.27 s |
| slow | the same numbers of steps, cut at twice their mean as by `--step-limit mean:2`, at 5 ms \
a step: 0.79 s on average, the longest pair 5.1 s |
| heavy | lognormal, 0.5 s on average, sigma 1, no limit: one in ten thousand lasts over 12.5 s |
| constant | 0.1 s each |

"""
EFFICIENCY = """## Efficiency

Efficiency is the seconds of counted episodes divided by the seconds of workers' presence. It \
covers whole generations, from the first claim of one to the first claim of another. *Work* \
is the work of a generation per worker. Without enough work, no schedule is efficient; the \
walker's short episodes need unusually large populations for that. *Bound* is the limit of any \
synchronous schedule, because a generation lasts as long as its longest pair.

"""


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def efficiency_line(row: Found, how: str) -> str:
    target = TARGETS[row["schedule"]].get(row["workers"])
    met = (
        ""
        if target is None
        else f"≥ {100 * target:.0f} %, {'met' if row['efficiency'] >= target else '**missed**'}"
    )
    bound = percent(row["bound"]) if row["schedule"] == SYNC else ""
    work = row["population"] * row["episode_seconds"] / row["workers"]
    parameters = f", {row['size']:,} parameters" if row.get("size", 0) > 1000 else ""
    return (
        f"| {row['schedule']} | {NAMED[row['durations']]}{parameters} | {row['workers']:,} | "
        f"{row['population']:,} | {work:.1f} s | {how} | **{percent(row['efficiency'])}** | "
        f"{bound} | {met} |"
    )


def efficiency(found: Found) -> str:
    rows = [(row, "real") for row in found["real"]] + [
        (row, "model") for row in found["simulated"] if "efficiency" in row
    ]
    order = {
        name: place for place, name in enumerate((SYNC, ASYNC, RECORDED, SLOW, HEAVY, CONSTANT))
    }
    rows.sort(
        key=lambda one: (
            order[one[0]["schedule"]],
            order[one[0]["durations"]],
            one[0].get("size", 0) > 1000,
            one[0]["workers"],
            one[0]["population"],
        )
    )
    head = (
        "| schedule | episodes | workers | population | work | | efficiency | bound | target "
        "|\n|---|---|---|---|---|---|---|---|---|\n"
    )
    still = [
        f"{row['workers']:,} workers, {NAMED[row['durations']]}, {row['schedule']}"
        for row in found["simulated"]
        if row.get("standstill")
    ]
    said = f"\nModelled runs that came to a standstill: {'; '.join(still)}.\n" if still else ""
    return EFFICIENCY + head + "\n".join(efficiency_line(*one) for one in rows) + f"\n{said}"


def machines(found: Found) -> str:
    """What the real runs took of the machine."""
    head = (
        "## CPU use of the master and the server\n\n| schedule | episodes | workers | "
        "blocks per second | master | server | simulator | wasted | polls per second |\n"
        + "|---" * 9
        + "|\n"
    )
    lines = []
    for row in found["real"]:
        cpu, control = row["cpu"], row["control"]
        shares = " | ".join(percent(cpu[name]) for name in ("master", "redis", "simulator"))
        vain = percent(max(0.0, row["played_twice"])) if row["schedule"] == SYNC else ""
        lines.append(
            f"| {row['schedule']} | {NAMED[row['durations']]} | {row['workers']:,} | "
            f"{row['blocks_per_second']:.0f} | {shares} | "
            f"{vain} | {control['orders']:.0f} |"
        )
    return head + "\n".join(lines) + "\n"


def agreement(found: Found) -> str:
    points = [abs(row["points"]) for row in found["agreement"] if "real" in row]
    return (
        f"The model was also computed for {len(points)} of the real runs. Its efficiency differs "
        f"from theirs by at most {max(points, default=0.0):.1f} points; 3 were allowed.\n"
    )


def megabytes(value: float) -> str:
    return f"{value / 1e6:.1f} MB"


def bytes_of(found: Found) -> str:
    """Memory and traffic of a large fleet."""
    lines = ["## Memory and traffic", ""]
    for row in found.get("traffic", ()):
        parts = ", ".join(
            f"{name} {megabytes(value)}"
            for name, value in sorted(row["received_by_workers"].items(), key=lambda one: -one[1])
            if value > 5e4
        )
        lines.append(
            f"- {row['workers']:,} workers on {row['hosts']} hosts, {row['schedule']}, "
            f"{row['parameters_bytes'] // 4:,} parameters, generations of 10,000 heavy episodes "
            f"in {row['seconds']:.1f} s: "
            f"{megabytes(row['bytes_left'])} leave Redis per generation, {row['ratio']:.2f} × "
            f"hosts × parameters + results ({megabytes(row['hosts_x_parameters_and_results'])}; "
            "1.20 × was the target). "
            f"{megabytes(row['read_again'])} of it are results that the master reads "
            f"twice; without them it is {row['ratio_read_once']:.2f} ×. To workers: {parts}. "
            f"Redis' memory grows by {megabytes(row['memory'])}, "
            f"{row['memory'] / row['hosts_x_parameters_and_results']:.2f} × that sum."
        )
    for row in found.get("connections", ()):
        lines.append(
            f"- {row['workers']:,} workers over {row['clients']:,} connections completed "
            f"{row['generations']} generation{'s' if row['generations'] > 1 else ''} of "
            f"{row['population']:,} heavy episodes, "
            f"{row['seconds'] / row['generations']:.1f} s each, {row['late']} late results; "
            f"Redis used {megabytes(row['memory'])}, its process at most "
            f"{megabytes(row['redis_peak_rss'])}. "
            f"Master {percent(row['cpu']['master'])}, server {percent(row['cpu']['redis'])} of a "
            f"core. The simulator was busy ({percent(row['cpu']['simulator'])}), so its "
            f"efficiency, {percent(row['efficiency'])}, is a lower bound."
        )
    over = found["overhead"]
    lines.append(
        f"- A generation's overhead with {over['parameters']:,} parameters and "
        f"{over['episodes']:,} episodes on {over['workers']} workers: "
        f"{over['last_answer_to_published']:.3f} s from the last result to the next "
        f"publication, {over['published_to_first_claim']:.3f} s to the first claim: "
        f"{percent(over['share_of_ten_seconds'])} of a generation of 10 s (below 5 % was the "
        "target)."
    )
    return "\n".join(lines) + "\n"


def document(found: Found, before: str = "") -> str:
    """The page; ``before``: as it was, whose last part is kept."""
    kept = before.partition(BY_HAND)[2] if BY_HAND in before else "\n"
    parts: Sequence[str] = (
        HEAD,
        efficiency(found),
        agreement(found),
        machines(found),
        bytes_of(found),
        advice.page(Services(**found["services"])),
    )
    return "\n".join(part.rstrip("\n") + "\n" for part in parts) + f"\n{BY_HAND}{kept}"
