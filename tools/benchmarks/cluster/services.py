"""Service times of Redis and of the master, fitted from real runs: what the discrete-event
simulation is made of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from es_queue.config.run_config import ASYNC

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Services:
    """Seconds. Redis: of each trip, of the scripts and of parameters by the byte. Master: CPU of
    each phase, but what close lasts: it has threads.

    A pair or triple is (constant, a unit more of the first size, of the second): publish by blocks;
    reconcile by unanswered slots and workers; read by answers and their slots; tick by workers and
    unanswered slots; close, of either schedule, by slots and slots times parameters; open by slots
    and parameters; extend by blocks.
    """

    answer: float
    claimed: float
    claim: float
    task: float
    orders: float
    alive: float
    beat: float
    fetched_byte: float
    publish: tuple[float, ...]
    reconcile: tuple[float, ...]
    entry: float
    read: tuple[float, ...]
    tick: tuple[float, ...]
    close: tuple[float, ...]
    open: tuple[float, ...]
    worker: float
    digest_byte: float
    extend: tuple[float, ...]
    close_async: tuple[float, ...]


def least_squares(sizes: Sequence[Sequence[float]], seconds: Sequence[float]) -> tuple[float, ...]:
    """Coefficients of (1, *sizes) for ``seconds``, none below zero, relative errors least."""
    matrix = np.array([[1.0, *one] for one in sizes])
    values = np.maximum(np.array(seconds, float), 1e-9)
    columns, found = list(range(matrix.shape[1])), np.zeros(matrix.shape[1])
    while columns:
        part = matrix[:, columns] / values[:, None]
        scale = np.maximum(np.abs(part).max(axis=0), 1e-300)
        solved = np.linalg.lstsq(part / scale, np.ones(len(values)), rcond=None)[0] / scale
        if (solved >= 0).all():
            found[columns] = solved
            break
        columns.pop(int(np.argmin(solved * scale)))
    return tuple(float(one) for one in found)


def rates(row: Row) -> dict[str, float]:
    """Trips a second in the measured window, by name; beats and looks come evenly over the whole
    run.
    """
    redis, trips = row["redis"], row["trips"]
    whole = trips["orders"] / max(1e-9, redis["calls cmdstat_hmget"])
    blmove = redis["calls cmdstat_blmove"]
    found = {
        "answer": row["blocks_per_second"],
        "claim": blmove,
        "claimed": blmove * trips["claimed"] / trips["claim"],
    }
    found |= {name: trips[name] / whole for name in ("orders", "alive", "beat")}
    return {
        **found,
        "xread": redis["calls cmdstat_xread"],
        "evalsha": redis["calls cmdstat_evalsha"],
    }


def trip_overhead(rows: Sequence[Row]) -> float:
    """Redis' CPU beyond the commands themselves: reading a request, writing the reply, the event
    loop.
    """
    top = (
        "evalsha",
        "exec",
        "multi",
        "blmove",
        "hmget",
        "hexists",
        "exists",
        "lrange",
        "xread",
        "hgetall",
        "info",
        "getrange",
    )
    rest = trips = 0.0
    for row in rows:
        commands = sum(row["redis"].get(f"usec cmdstat_{name}", 0.0) for name in top) / 1e6
        rest += max(0.0, row["cpu"]["redis"] - commands) * row["seconds"]
        trips += sum(rates(row).values()) * row["seconds"]
    return rest / trips


def per_call(rows: Sequence[Row], name: str) -> float:
    """Seconds of a command inside Redis."""
    calls: float = sum(
        row["redis"].get(f"calls cmdstat_{name}", 0.0) * row["seconds"] for row in rows
    )
    return float(
        sum(row["redis"].get(f"usec cmdstat_{name}", 0.0) * row["seconds"] for row in rows)
        / max(1e-9, calls)
        / 1e6
    )


def each(row: Row, phase: str, value: str) -> float:
    """Mean of a phase's value over its calls."""
    one = row["master"][phase]
    return float(one[value] / max(1, one["calls"]))


def in_script(row: Row, phase: str) -> float:
    """Seconds that the master waits for a script."""
    return max(1e-7, each(row, phase, "wall") - each(row, phase, "cpu"))


def tick_cpu(row: Row) -> float:
    """The master's CPU of one second's duties, the reading of answers left out."""
    return float(
        sum(row["master"][phase]["cpu"] for phase in ("tick", "renew", "workers", "reconcile"))
        / row["master"]["tick"]["calls"]
    )


def read_cpu(row: Row) -> float:
    """CPU of one read of the stream, answers decoded and accounted."""
    return float(
        (row["master"]["take in"]["cpu"] + row["master"]["collect"]["cpu"])
        / row["master"]["collect"]["calls"]
    )


def read_seconds(rows: Sequence[Row], drained: Sequence[tuple[float, float]]) -> tuple[float, ...]:
    """(a read, an answer more, a slot more): the last two from drains, where a read brings a
    thousand answers. What is read again is part of the first.
    """
    (less, few), (more, many) = drained
    slot = (more - less) / (many - few)
    answer = max(0.0, less - slot * few)
    rest = [
        read_cpu(row)
        - (answer + slot * slots_of(row)) * row["answers"] / row["master"]["collect"]["calls"]
        for row in rows
    ]
    return max(0.0, float(np.median(rest))), answer, slot


def slots_of(row: Row) -> float:
    """Mean slots of an answer."""
    return float(row["population"] / 2 * row["generations"] / row["answers"])


def open_cpu(row: Row) -> float:
    return float(
        sum(row["master"][phase]["cpu"] for phase in ("open", "stage", "publish"))
        / row["master"]["open"]["calls"]
    )


def closing(rows: Sequence[Row], sums: float) -> tuple[float, ...]:
    """(a close, a slot more, a slot's parameter more): the last is ``sums``, of rows whose
    parameters are many.
    """
    found = least_squares(
        [[row["population"] / 2] for row in rows],
        [
            max(1e-6, each(row, "close", "wall") - sums * row["population"] / 2 * row["size"])
            for row in rows
        ],
    )
    return (*found, sums)


def fit(
    rows: Sequence[Row], drained: Sequence[tuple[float, float]], fetched_byte: float = 3e-10
) -> Services:
    """From rows that ``real`` gave, of several sizes. drained: (the master's CPU seconds, slots) of
    an answer, of two sizes;
    fetched_byte: seconds of Redis for a byte of parameters.
    """
    trip, waited, topped = (
        trip_overhead(rows),
        [row for row in rows if row["schedule"] != ASYNC],
        [row for row in rows if row["schedule"] == ASYNC],
    )
    sums = least_squares(
        [[row["population"] / 2, row["population"] / 2 * row["size"]] for row in waited],
        [each(row, "close", "wall") for row in waited],
    )[2]
    exists, multi = per_call(rows, "exists"), per_call(rows, "multi") + per_call(rows, "exec")
    return Services(
        answer=trip + multi + per_call(rows, "lrange"),  # its reply has what is still held
        claimed=trip + per_call(rows, "lrange"),
        claim=trip + per_call(rows, "blmove"),
        task=trip + per_call(rows, "getrange"),
        orders=trip + per_call(rows, "hmget") + per_call(rows, "hexists") + 3 * exists,
        alive=trip + per_call(rows, "pexpire") + exists,
        beat=trip + multi,
        fetched_byte=fetched_byte,
        entry=per_call(rows, "xread")
        * sum(row["master"]["collect"]["calls"] for row in rows)
        / sum(row["master"]["collect"]["size"] for row in rows),
        publish=least_squares(
            [[each(row, "publish", "size")] for row in rows],
            [in_script(row, "publish") for row in rows],
        ),
        reconcile=least_squares(
            [[each(row, "reconcile", "size"), row["workers"]] for row in rows],
            [in_script(row, "reconcile") for row in rows],
        ),
        read=read_seconds(rows, drained),
        tick=least_squares(
            [[row["workers"], each(row, "reconcile", "size")] for row in rows],
            [tick_cpu(row) for row in rows],
        ),
        close=closing(waited, sums),
        open=least_squares(
            [[row["population"] / 2, row["size"]] for row in rows], [open_cpu(row) for row in rows]
        ),
        extend=least_squares(
            [[each(row, "extend", "size")] for row in topped],
            [in_script(row, "extend") for row in topped],
        ),
        close_async=closing(topped, sums),
        worker=float(np.median([row["cost"]["block"] for row in rows])),
        digest_byte=float(np.median([row["cost"]["digest"] for row in rows])),
    )
