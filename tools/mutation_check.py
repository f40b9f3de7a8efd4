"""Plant the defects of ``tools/mutants.toml`` one by one, and see that the named tests catch each:
``python -m tools.mutation_check [WORD ...]``.

A mutant is planted in a copy of the source, so this checkout stays as it is. A test that fails or
hangs has caught it. Those of MuJoCo and Atari need the extras of these names. Ends with 1 if a
mutant survives.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[1]
FILE = Path(__file__).with_name("mutants.toml")
COPIED = (
    *("docker", "docs", "es_queue", "examples", "master", "tests", "tools", "workers"),
    *("pyproject.toml", "README.md", "CHANGELOG.md"),
)
#: Seconds that the tests of one mutant may last. Longer is a hang.
LIMIT = 120.0
SURVIVED, BROKEN = "survived", "broken"
#: A line of pytest's summary of the tests that failed.
FAILED = re.compile(r"^(?:FAILED|ERROR|SUBFAILED.*?) (\S+\.py\S*)", re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
    """A plausible defect: the text of ``file`` that it replaces, and the tests that must catch it,
    as arguments of pytest.
    """

    name: str
    file: str
    original: str
    mutated: str
    tests: tuple[str, ...]


def read_mutants(path: Path = FILE) -> list[Mutant]:
    """The mutants of a file."""
    rows = tomllib.loads(path.read_text("utf-8"))["mutant"]
    return [Mutant(**{**row, "tests": tuple(row["tests"])}) for row in rows]


def misplaced(root: Path, mutants: Sequence[Mutant]) -> list[str]:
    """The mutants whose original text is not exactly once in its file, in words."""
    texts = {one.file: (root / one.file).read_text("utf-8") for one in mutants}
    counts = [(one, texts[one.file].count(one.original)) for one in mutants]
    return [
        f"{one.name}: {one.file} has {count} times: {one.original}"
        for one, count in counts
        if count != 1
    ]


def copy_source(root: Path, copy: Path) -> None:
    """What the tests of the mutants read of ``root``, and a Python that imports it."""
    for name in COPIED:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, copy / name)
    make_python(copy)


def make_python(copy: Path) -> None:
    """Make a virtual environment in the copy that imports the copy first, and other packages from
    this environment, so that the processes that tests start have the mutant, too.
    """
    own, here = copy / ".venv", Path(sys.executable).parent
    packages = own / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (own / "bin").mkdir(parents=True)
    packages.mkdir(parents=True)
    real = Path(sys.executable).resolve()
    (own / "pyvenv.cfg").write_text(f"home = {real.parent}\n")
    others = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"
    (packages / "copy.pth").write_text(f"{copy}\n{others}\n")
    for script in here.iterdir():
        copied = own / "bin" / script.name
        if script.resolve() == real:
            copied.symlink_to(real)
        elif script.read_bytes()[:2] == b"#!":
            copied.write_bytes(script.read_bytes().replace(bytes(here), bytes(own / "bin")))
            copied.chmod(0o755)
        else:
            copied.symlink_to(script)


def run_tests(copy: Path, tests: Sequence[str], limit: float = LIMIT) -> str:
    """The first test that failed in the copy, or that the tests hung; "survived" if all passed;
    "broken" if one was skipped, or not found.
    """
    python = copy / ".venv" / "bin" / "python"
    command = [str(python), "-B", "-m", "pytest", "-x", "-rfE", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PY_COLORS": "0", "COLUMNS": "300", "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("PYTHONPATH", None)
    process = subprocess.Popen(
        [*command, *tests],
        cwd=copy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"a hang of {limit:.0f} s"
    if process.returncode == 0:
        return SURVIVED if " passed" in said else BROKEN
    found = FAILED.search(said)
    if process.returncode == 1 and found is not None:
        return found[1].rpartition("::")[2] or found[1]
    # An import that fails ends the collection: the defect is as visible as can be.
    return found[1] if found is not None and "rror" in said else BROKEN


def check_mutant(copy: Path, mutant: Mutant, limit: float = LIMIT) -> str:
    """What catches a mutant in the copy, which is whole again afterwards.

    Raises ValueError if the original text is not in the file exactly once.
    """
    if wrong := misplaced(copy, [mutant]):
        raise ValueError(wrong[0])
    path = copy / mutant.file
    source = path.read_text("utf-8")
    path.write_text(source.replace(mutant.original, mutant.mutated), "utf-8")
    try:
        return run_tests(copy, mutant.tests, limit)
    finally:
        path.write_text(source, "utf-8")


def check_all(
    root: Path, mutants: Sequence[Mutant], jobs: int = 1, limit: float = LIMIT
) -> Iterator[tuple[Mutant, str]]:
    """Each mutant with what catches it: the name of a test, or "a hang"; else "survived", or
    "broken" if its tests do not pass without it.
    """
    whole = SimpleQueue[Path]()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        for number in range(jobs):
            copy = Path(folder) / str(number)
            copy.mkdir()
            copy_source(root, copy)
            whole.put(copy)

        def check(mutant: Mutant) -> str:
            copy = whole.get()
            try:
                caught = check_mutant(copy, mutant, limit)
                # A test that fails by itself catches nothing. Most mutants share their tests.
                if caught not in (SURVIVED, BROKEN) and not passes(copy, mutant.tests):
                    return BROKEN
                return caught
            finally:
                whole.put(copy)

        passed: dict[tuple[str, ...], bool] = {}

        def passes(copy: Path, tests: tuple[str, ...]) -> bool:
            if tests not in passed:
                passed[tests] = run_tests(copy, tests, 5 * limit) == SURVIVED
            return passed[tests]

        yield from zip(mutants, pool.map(check, mutants), strict=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", nargs="*", help="only mutants whose name or file holds a word")
    parser.add_argument("--jobs", type=int, default=1, help="copies that are tested side by side")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds until a test hangs")
    arguments = parser.parse_args()
    chosen = [
        one
        for one in read_mutants()
        if not arguments.words or any(word in f"{one.name} {one.file}" for word in arguments.words)
    ]
    if wrong := misplaced(ROOT, chosen):
        print(*wrong, sep="\n")
        return 2
    began, missed = time.monotonic(), 0
    for mutant, caught in check_all(ROOT, chosen, arguments.jobs, arguments.limit):
        missed += caught in (SURVIVED, BROKEN)
        mark = {SURVIVED: "SURVIVED", BROKEN: "BROKEN"}.get(caught, "caught")
        by = "" if mark != "caught" else f" by {caught}"
        print(f"{mark:8} {mutant.name} ({mutant.file}){by}", flush=True)
    caught_count = len(chosen) - missed
    print(f"{caught_count} of {len(chosen)} caught in {time.monotonic() - began:.0f} s")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
