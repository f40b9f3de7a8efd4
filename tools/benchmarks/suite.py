"""All measurements by name, each a function of a bench that gives rows of the table."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from es_queue.environments.vector import is_installed
from tools.benchmarks import figures
from tools.benchmarks.figures import Row
from tools.benchmarks.runs import Bench

ENVPOOL = "envpool"
BACKENDS = ("lean", ENVPOOL)


def whole(backend: str, bench: Bench) -> list[Row]:
    from tools.benchmarks.utilisation import overhead

    return overhead.measured(bench, backend)


def start(backend: str, bench: Bench) -> list[Row]:
    from tools.benchmarks.micro import worker_start

    return [
        *worker_start.measured(bench, backend),
        *(worker_start.imported(bench) if backend == ENVPOOL else []),
    ]


def memory(backend: str, bench: Bench) -> list[Row]:
    from tools.benchmarks.micro import memory

    return memory.measured(bench, backend)


def absolute(bench: Bench) -> list[Row]:
    from tools.benchmarks.micro import rates

    return rates.measured(bench)


def walker(bench: Bench) -> list[Row]:
    from tools.benchmarks.micro import backends

    found = backends.walker_backends(bench.repeats)
    targets = {"lean": 1.5, ENVPOOL: 2.0}
    return [
        Row(
            f"{name}-stock",
            f"{name} BipedalWalker ÷ stock loop, 32 episodes",
            spread(found["ratios"][f"{name} / stock"]),
            target=target,
            beside=rates(found),
            repeats=bench.repeats,
        )
        for name, target in targets.items()
        if f"{name} / stock" in found["ratios"]
    ]


def cartpole(bench: Bench) -> list[Row]:
    from tools.benchmarks.micro import backends

    found, base = backends.cartpole_backends(bench.repeats), "lean / stock"
    return [
        Row(
            f"cartpole{name.removeprefix(base).replace(', ', '-')}",
            f"CartPole vectorised ÷ stock loop{name.removeprefix(base)}",
            spread(one),
            target=4.0,
            beside=rates(found),
            repeats=bench.repeats,
        )
        for name, one in found["ratios"].items()
    ]


def gradient(bench: Bench) -> list[Row]:
    from tools.benchmarks.micro import arithmetic

    found = (
        arithmetic.gradient(bench.repeats, pairs=100)
        if bench.quick
        else arithmetic.gradient(bench.repeats)
    )
    size = f"{found['pairs']:,} pairs × {found['parameters']:,} parameters"
    beside = {
        f"{name}": f"{found[f'seconds_{name}']['median']:.3f} s"
        for name in ("ours", "read", "read_wide", "read_one_thread", "starter")
    }
    return [
        Row(
            "gradient",
            f"gradient, {size} ÷ one read of those bytes in 64 KiB slices",
            spread(found["ours / read"]),
            target=1.25,
            bound="≤",
            beside={**beside, "threads": str(found["threads"])},
            repeats=bench.repeats,
        ),
        Row(
            "gradient-wide",
            f"gradient, {size} ÷ the widest read of them that numpy can do",
            spread(found["ours / read_wide"]),
            target=1.25,
            bound="≤",
            repeats=bench.repeats,
        ),
        Row(
            "starter",
            "copy-500-rows-and-dot ÷ ours",
            spread(found["starter / ours"]),
            target=2.5,
            repeats=bench.repeats,
        ),
    ]


def drain(bench: Bench) -> list[Row]:
    from tools.benchmarks.micro import drain

    blocks = 20_000 if bench.quick else 200_000
    found = list(drain.drain(bench.repeats, blocks))
    beside = {
        "a second": figures.middle([one["a second"] for one in found]),
        "bytes a block": figures.middle([one["bytes"] for one in found]),
    }
    text = f"blocks of one slot read and accounted per CPU-second of the master, {blocks:,} of them"
    each = tuple(one["per CPU-second"] for one in found)
    return [Row("drain", text, each, target=300_000.0, beside=beside)]


def closing(bench: Bench) -> list[Row]:
    from tools.benchmarks.utilisation import generation_gap

    found = generation_gap.closing(bench.repeats, bench.quick)
    names = {"of it the master's CPU": "cpu", "its CPU on all results before": "collecting"}
    return [
        Row(
            f"closing-{number}",
            f"last result to the next publication, {name}",
            tuple(1000 * one for one in each["wall"]),
            " ms",
            500.0,
            "<",
            beside={
                name: figures.middle([1000 * one for one in each[of]], "{:,.3g} ms")
                for name, of in names.items()
            },
        )
        for number, (name, each) in enumerate(found.items(), 1)
    ]


def noise(bench: Bench) -> list[Row]:
    from tools.benchmarks.micro import arithmetic

    made, opened = arithmetic.noise(bench.repeats)
    return [
        Row("noise", "noise floats per core-second, digest included", made, " M", 100.0),
        Row("noise-open", "noise ready in a second process", opened, " ms", 50.0, "<"),
    ]


def spread(found: dict[str, float]) -> tuple[float, ...]:
    """As the values of a row: their median and range are those of the repeats."""
    return found["least"], found["median"], found["greatest"]


def rates(found: dict[str, Any]) -> dict[str, str]:
    return {
        "steps per CPU-second": ", ".join(
            f"{name} {value:,.0f}" for name, value in found["steps_per_cpu_second"].items()
        )
    }


Measure = Callable[[Bench], list[Row]]

MEASURES: dict[str, Measure] = {
    **{f"whole-{backend}": partial(whole, backend) for backend in BACKENDS},
    "walker": walker,
    "cartpole": cartpole,
    "gradient": gradient,
    "noise": noise,
    "drain": drain,
    "closing": closing,
    **{
        f"{one.__name__}-{backend}": partial(one, backend)
        for one in (start, memory)
        for backend in BACKENDS
    },
    "rates": absolute,
}


def rows_of(name: str, bench: Bench) -> list[Row]:
    """What one measurement gives; a row that says why where it cannot be made here."""
    if name.endswith(ENVPOOL) and not is_installed():
        return [Row(name, name.replace("-", ", "), (), skipped="envpool is not installed")]
    return MEASURES[name](bench)
