"""The table of digests: its file, this machine, and the doors through which a row is played.

``play_in_memory`` and ``play_in_order`` are all that knows how a master and its workers are put
together in one process. ``play_by_command`` knows only es-master.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from es_queue.config.recipes import named_recipe, resolve
from es_queue.config.run_config import RunConfig
from es_queue.numerics.noise_table import NoiseTable
from es_queue.protocol.messages import ELITE, TRAIN, Block, Task
from es_queue.slots import worker_mark
from es_queue.user_code import ALLOW
from master.loop import checkpoint
from master.loop.checkpoint import Checkpoints
from master.loop.listeners import CheckpointWriter
from master.loop.loop import Interrupted
from master.loop.state import Change
from master.run.setup import prepare_run
from master.run.warm_start import make_warm_state
from master.storage.generation_store import GenerationStore
from master.storage.replay import learn_again
from tests.integration.processes import flags
from tests.memory import MemoryServer, MemoryWorkerStore, Sink, make_master, workers
from workers.heartbeat import EpisodeControl
from workers.player import join

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_name("digests.json")
Row = dict[str, Any]
Found = dict[str, Any]
#: Packages whose version decides the numbers of the rows that name them.
PACKAGES = (
    *("numpy", "gymnasium", "mujoco", "ale-py", "opencv-python-headless"),
    *("box2d", "torch", "envpool", "gym"),
)


# --- the file


def read_table() -> dict[str, Any]:
    """recorded: of which commit, arithmetic and packages; bases: settings that rows share; rows."""
    table: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    return table


def write_table(table: Mapping[str, Any]) -> None:
    """One line for each base and each part of a row."""
    bases = ",\n".join(
        f"    {json.dumps(name)}: {json.dumps(values)}" for name, values in table["bases"].items()
    )
    rows = ",\n".join(
        "    {\n"
        + ",\n".join(f"      {json.dumps(key)}: {json.dumps(value)}" for key, value in row.items())
        + "\n    }"
        for row in table["rows"]
    )
    FILE.write_text(
        f'{{\n  "recorded": {json.dumps(table["recorded"])},\n'
        f'  "bases": {{\n{bases}\n  }},\n  "rows": [\n{rows}\n  ]\n}}\n',
        "utf-8",
    )


def rows_by_name() -> dict[str, Row]:
    return {row["name"]: row for row in read_table()["rows"]}


def expected_of(row: Row, rows: Iterable[Row] = ()) -> Found:
    """What was recorded for the row, or for the row that it must equal."""
    if "same_as" in row:
        named = {each["name"]: each for each in rows} or rows_by_name()
        row = named[row["same_as"]]
    expected: Found = row["expected"]
    return expected


def settings_of(row: Row, without: str = "") -> dict[str, Any]:
    """The row's settings over those of its base; tuples where JSON has lists."""
    values = {**read_table()["bases"].get(row.get("base"), {}), **row.get("settings", {})}
    values.pop(without, None)
    values = {name: value for name, value in values.items() if value is not None}
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}


def config_of(row: Row, without: str = "") -> RunConfig:
    values = settings_of(row, without)
    recipe = named_recipe(row["recipe"]) if "recipe" in row else {}
    inherited = [name for name in recipe if name not in values]
    return resolve({**recipe, **values}, inherited)


# --- this machine


@cache
def arithmetic() -> str:
    """A hash of what this machine's numpy and C library compute, without any code of es-queue."""
    wide = (np.arange(3000, dtype=np.float64) * 0.7390851332151607) % 3 - 1.5
    single = wide.astype(np.float32)
    left, right = single[:1056].reshape(33, 32), single[: 32 * 41].reshape(32, 41)
    parts: list[Any] = [left @ right, left[0] @ right, left @ right[:, 0], single @ single]
    for values in (single, wide):
        functions = (np.tanh, np.exp, np.sin, np.cos, np.square)
        parts += [each(values) for each in functions] + [
            np.log(np.abs(values) + 1),
            np.sqrt(np.abs(values)),
            values.sum(),
        ]
    parts.append(np.array([[f(x) for x in wide.tolist()] for f in (math.sin, math.cos, math.exp)]))
    data = b"".join(np.ascontiguousarray(part).tobytes() for part in parts)
    return hashlib.blake2b(data, digest_size=8).hexdigest()


@cache
def versions() -> dict[str, str]:
    """The installed versions of PACKAGES."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def reason_to_skip(row: Row) -> str:
    """Why the recorded digest says nothing about this machine; empty if it does."""
    recorded, here = read_table()["recorded"], versions()
    for name in row.get("needs", ()):
        if name not in here:
            return f"{name} is not installed"
    if recorded["arithmetic"] != arithmetic():
        return (
            f"other arithmetic: the digests were recorded with {recorded['arithmetic']} and numpy "
            f"{recorded['versions']['numpy']}, this machine has {arithmetic()} and {here['numpy']}"
        )
    for name in row.get("needs", ()):
        if here[name] != recorded["versions"][name]:
            was = recorded["versions"][name]
            return f"other version: recorded with {name} {was}, and {here[name]} is installed"
    return ""


# --- what a run is compared by


def found_of(digest: str, records: Iterable[Mapping[str, Any]], final: float | None) -> Found:
    """trail: a hash of each generation's parameters, steps and evaluations; a generation that was
    recorded twice counts once. vectors: how many different parameters were published.
    """
    last: dict[int, list[Any]] = {}
    steps = 0
    for record in records:
        names = ("digest", "env_steps", "eval_mean", "confirm_mean")
        last[record["generation"]] = [record[name] for name in names]
        steps = record["env_steps"]
    text = json.dumps([[number, *last[number]] for number in sorted(last)])
    trail = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return {
        "digest": digest,
        "trail": trail,
        "vectors": len({values[0] for values in last.values()}),
        "env_steps": steps,
        "eval_mean": final,
    }


# --- in memory


@cache
def noise(size: int) -> NoiseTable:
    return NoiseTable.in_memory(size)


def play(row: Row, without: str = "") -> Found:
    if "order" in row:
        return play_in_order(row)
    return play_in_memory(row, without=without)


def play_in_memory(
    row: Row, without: str = "", folder: Path | None = None, threads: int | None = None
) -> Found:
    """A master and worker threads over the channel in memory.

    The row may have threads (number of workers), resume_at (the generation in which the master
    ends and another takes over), flush_at (the one in which the server loses everything), changes
    (settings by generation) and warm_start (the row whose best policy is the first).
    """
    config = config_of(row, without)
    setup = prepare_run(config, table=noise(config.noise_size or 2**18))
    server, sink = MemoryServer(), Sink()
    state = setup.initial_state()
    if "warm_start" in row:
        with tempfile.TemporaryDirectory() as before:
            play_in_memory(rows_by_name()[row["warm_start"]], folder=Path(before))
            state = make_warm_state(setup, Path(before))
    changes = (
        {}
        if without in {n for each in row.get("changes", {}).values() for n in each}
        else {**row.get("changes", {})}
    )
    listed = [Change(int(number), values, "table") for number, values in changes.items()]
    state = replace(state, changes=tuple(listed))
    events = {row[name]: name for name in ("resume_at", "flush_at") if name in row}

    def interrupted() -> bool:
        event = events.pop(len(sink.records), "")
        if event == "flush_at":
            server.flush()
        return event == "resume_at"

    more: dict[str, Any] = {"interrupted": interrupted}
    if folder:
        store = GenerationStore("memory", folder, 0)
        more["listeners"] = (CheckpointWriter(Checkpoints(folder), "memory"), store)
    adopted = None
    with workers(server, setup.config, setup.table, threads or row.get("threads", 1)):
        while True:
            try:
                outcome = make_master(setup, server, sink, **more).train(state, adopted)
                break
            except Interrupted:
                assert server.checkpoint is not None and server.task is not None
                state = checkpoint.decode(server.checkpoint)[1]
                adopted = Task.decode(server.task)
    if folder:
        store.log.close()
    assert not events, f"{row['name']}: {events} did not happen"
    final = outcome.evaluation.mean if outcome.evaluation else None
    return found_of(outcome.digest, sink.records, final)


# --- in memory, in a recorded order


def record_order(row: Row) -> list[Any]:
    """An order in which three workers' results are used: for each batch, those of training and
    those of repeated evaluations, each by generation: [generation, slots].
    """
    with tempfile.TemporaryDirectory() as folder:
        play_in_memory({**row, "order": None}, folder=Path(folder), threads=3)
        batches = [
            chosen
            for _, _, chosen in learn_again("memory", Path(folder), Path(folder) / "noise")
            if chosen is not None
        ]
    return [
        [
            [
                [number, *slots[slots[:, 0] == number, 1].tolist()]
                for number in sorted(set(slots[:, 0].tolist()))
            ]
            for slots in (chosen.plans(chosen.trained), chosen.plans(chosen.elites))
        ]
        for chosen in batches
    ]


def play_in_order(row: Row) -> Found:
    """One worker that claims whatever it is offered, and gives for each batch exactly the results
    that the recorded order uses for it.
    """
    config, order = replace(config_of(row), block=1), row["order"]
    setup = prepare_run(config, table=noise(config.noise_size))
    server, sink = MemoryServer(), Sink()
    hands = [MemoryWorkerStore(server, f"hand-{number}-00000a") for number in range(16)]
    hand = hands[0]
    player = join(setup.config, EpisodeControl(), table=setup.table)
    for each in hands:
        each.arrive({"host": "hand", "numerics": player.numerics}, 600.0)
    mark = worker_mark(hand.worker)
    answers: dict[tuple[int, int, int], tuple[Block, bytes, bytes]] = {}
    required = {
        (number, kind, slot)
        for step in order
        for kind, uses in zip((TRAIN, ELITE), step, strict=True)
        for number, *slots in uses
        for slot in slots
    }
    failures: list[BaseException] = []

    def claim(wait: float = 0.01) -> None:
        """Claim a block and play it; hold the result if a batch uses it, give it if no batch does
        because it is an evaluation.
        """
        block = hand.claim(wait)
        if block is None:
            return
        task = current_task()
        if task.publication != block.publication:
            return
        if not player.has(block):
            data = hand.parameters(task.publication, 4 * task.size)
            assert data is not None
            player.open(task, np.frombuffer(data, "<f4"))
        answer = player.play(block, mark)
        given = block, answer.results.tobytes(), answer.moments.tobytes()
        number = int(player.slots.table["number"][block.start])
        key = (task.generation, block.kind, number)
        if key in required:
            answers[key] = given
        elif block.kind not in (TRAIN, ELITE):
            hand.answer(*given)

    def current_task() -> Task:
        raw = hand.task()
        assert raw is not None
        return Task.decode(raw)

    def serve() -> None:
        try:
            for number, step in enumerate(order):
                uses = list(zip((TRAIN, ELITE), step, strict=True))
                while not server.task or in_generation() < number:
                    check_time("a publication")
                    time.sleep(0.001)
                mine = {key for key in required if key[0] == number}
                while not mine <= answers.keys():
                    claim()
                    check_time(f"blocks {sorted(mine - answers.keys())[:3]}")
                while server.todo:
                    claim(0.0)
                with server.changed:
                    for kind, used in uses:
                        for of, *slots in used:
                            for slot in slots:
                                hand.answer(*answers[of, kind, slot])
                while not over.is_set() and in_generation() == number < len(order) - 1:
                    claim()
                    check_time("the next publication")
            while not over.is_set():
                claim()
        except BaseException as error:
            failures.append(error)
            failed.set()

    def in_generation() -> int:
        return current_task().generation

    deadline = time.monotonic() + 60

    def check_time(what: str) -> None:
        if time.monotonic() > deadline:
            raise AssertionError(f"{row['name']}: waited too long for {what}")

    over, failed = threading.Event(), threading.Event()
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    master = make_master(setup, server, sink, interrupted=failed.is_set)
    try:
        outcome = master.train(setup.initial_state())
    except Interrupted:
        raise failures[0] from None
    finally:
        over.set()
        thread.join(10)
    final = outcome.evaluation.mean if outcome.evaluation else None
    return found_of(outcome.digest, sink.records, final)


# --- by the command


def command_of(row: Row, *more: object) -> list[str]:
    recipe = ("--recipe", row["recipe"]) if "recipe" in row else ()
    words = []
    for name, value in settings_of(row).items():
        words += flag_words(name, value)
    return [
        str(Path(sys.executable).with_name("es-master")),
        *words,
        *map(str, (*recipe, *more)),
        "--json",
    ]


def flag_words(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{'' if value else 'no-'}{name.replace('_', '-')}"]
    if name == "env_arg":
        return [word for key, of in value.items() for word in ("--env-arg", f"{key}={of}")]
    if name == "wrapper":
        return [word for each in value for word in ("--wrapper", each)]
    return flags({name: value})


def found_in(lines: Iterable[str]) -> Found:
    """What --json printed, of one es-master or of several that led the same run in turn."""
    records = [json.loads(line) for line in lines if line.startswith("{")]
    summary = [one for one in records if one["event"] == "summary"][-1]
    generations = [one for one in records if one["event"] == "generation"]
    return found_of(summary["digest"], generations, summary["eval_mean"])


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), ALLOW: "installed,tests"}


def play_by_command(row: Row, folder: Path, count: int) -> Found:
    """``es-master`` with its own server and ``count`` local workers."""
    command = command_of(row, "--workers", count, "--run", "row", "--run-dir", folder / "run")
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment(), cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return found_in(done.stdout.splitlines())
