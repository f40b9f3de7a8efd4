"""Flame graphs of a worker while it plays: ``python -m tools.benchmarks.charts.flame --py-spy
PATH`` writes docs/flame-*.svg.

py-spy looks at one worker of a whole run 200 times a second, from outside, native frames included.
Drawn is what is below ``BlockWorker.run``, and the heartbeat thread where it does not wait; widths
are shares of the samples.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from es_queue.environments.envpool import is_installed
from es_queue.numerics.fingerprint import fix_numeric_environment

fix_numeric_environment()  # before numpy is loaded

from tools.benchmarks.charts.flame_graph import Stack, drawing  # noqa: E402
from tools.benchmarks.runs import HOUSE, Bench, fork, processes_of, resumed, scratch  # noqa: E402

RATE = 200
LARGEST = 200_000
TITLE = "A worker on the {} back end, BipedalWalker-v3: where its time goes"
#: What stands before the part of a path that says something.
PREFIX = re.compile(r"/[^\s()]*/(?:site-packages|dist-packages|lib/python3\.\d+)/")
NUMBERS = re.compile(r":\d+\)$|^0x[0-9a-f]+")
#: What a worker stands on is the same in every sample; and the thread beside the one that plays.
ROOT, BESIDE = "BlockWorker.run ", "Heartbeat.run "
WAITING, ASLEEP = ("Condition.wait ", "Event.wait "), ("?", "poll ")


def stacks(folded: str) -> list[tuple[Stack, int]]:
    """What py-spy's raw format says: frames from the root on and how many samples; what waits is
    left out.
    """
    found = []
    for line in folded.splitlines():
        text, _, count = line.rpartition(" ")
        frames = [readable(frame) for frame in text.split(";")]
        start = next(
            (place for place, frame in enumerate(frames) if frame.startswith((ROOT, BESIDE))), None
        )
        if start is None or any(frame.startswith(WAITING) for frame in frames):
            continue
        if frames[start].startswith(ROOT) or not frames[-1].startswith(
            ASLEEP
        ):  # the heartbeat thread, waiting for a reply
            found.append((tuple(frames[start:]), int(count)))
    return found


@cache
def folders() -> list[str]:
    """This machine's, the longest first."""
    return sorted(
        {str(HOUSE), sys.prefix, sys.base_prefix, *sysconfig.get_paths().values()},
        key=len,
        reverse=True,
    )


@cache
def readable(frame: str) -> str:
    """A frame without the folders of this machine, its line and its address: a function is drawn
    once.
    """
    for folder in folders():
        frame = frame.replace(f"{folder}/", "")
    return NUMBERS.sub(
        lambda found: ")" if found[0].startswith(":") else "?", PREFIX.sub("", frame)
    )


def left_behind(svg: str) -> list[str]:
    """Absolute paths that are still in it."""
    return sorted(set(re.findall(r"(/(?:home|root|tmp|usr|opt|work|var)/[^\s&<>():]*)", svg)))


def sampled(bench: Bench, backend: str, py_spy: Path, seconds: int) -> str:
    """What py-spy saw of one worker, from the second generation on."""
    raw = bench.fresh("flame") / "folded.txt"
    with processes_of(bench) as processes:
        run = resumed(bench, processes, fork(bench, f"flame-{backend}", backend=backend))
        run.record(bench.start[1].generation + 1)
        command = [
            py_spy,
            "record",
            "--pid",
            run.horses()[0],
            "--duration",
            seconds,
            "--rate",
            RATE,
            "--native",
            "--function",
            "--format",
            "raw",
            "--output",
            raw,
        ]
        subprocess.run([str(word) for word in command], check=True, capture_output=True)
        run.stop()
    return raw.read_text()


def heaviest(found: Iterable[tuple[Stack, int]], most: int = 15) -> list[str]:
    """The frames in which the most samples ended, for a person to write about."""
    own: dict[str, int] = {}
    for stack, count in found:
        own[stack[-1]] = own.get(stack[-1], 0) + count
    whole = sum(own.values())
    return [
        f"{100 * count / whole:5.1f} % {name}"
        for name, count in sorted(own.items(), key=lambda one: -one[1])[:most]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.benchmarks.charts.flame",
        description="Draw docs/flame-lean.svg and docs/flame-envpool.svg.",
    )
    parser.add_argument(
        "--py-spy",
        type=Path,
        default=Path("py-spy"),
        metavar="PATH",
        help="the py-spy to use [default: the one on the PATH]",
    )
    parser.add_argument("--seconds", type=int, default=30, help="how long to look [default: 30]")
    parser.add_argument(
        "--state", type=Path, metavar="FILE", help="as of python -m tools.benchmarks"
    )
    given = parser.parse_args()
    with scratch(1, False, given.state) as bench:
        for backend in ("lean", *(["envpool"] if is_installed() else [])):
            found = stacks(sampled(bench, backend, given.py_spy, given.seconds))
            svg = drawing(found, TITLE.format(backend))
            print(f"{backend}, time in a frame itself:", *heaviest(found), sep="\n")
            if left_behind(svg) or len(svg) > LARGEST:
                print(
                    f"{backend}: {len(svg)} bytes, paths {left_behind(svg)}: not written",
                    file=sys.stderr,
                )
                return 1
            (HOUSE / "docs" / f"flame-{backend}.svg").write_text(svg)
    return 0


if __name__ == "__main__":
    sys.exit(main())
