"""Every block that a page marks as runnable is run, and the notebook and the site are built."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from es_queue.user_code import ALLOW
from tests.docs.pages import HOUSE, Marked, marked_blocks, named, pages

# --- every block that a page marks as runnable is run, in the page's order, in one empty folder
# a page


#: What --seeds and a budget of their own do not stand beside.
BRIEF = "--workers 1 --max-seconds 6 --eval-episodes 5 --final-episodes 5"
TRAINS = re.compile(
    (
        r"^(?P<command>(?:\w+=\S+ )*es-master (?=.*--(?:env|objective|config|resume) "
        r")[^#&\n]*?)(?P<rest>\s*(?:[#&].*)?)$"
    ),
    re.MULTILINE,
)
NEEDS = re.compile(r"needs (?P<module>\w+)")
DEADLINE = 200.0  # seconds


def shortened(code: str) -> str:
    """The code with a small budget behind each command that trains."""
    return TRAINS.sub(lambda found: f"{found['command']} {BRIEF}{found['rest']}", code)


def missing(block: Marked) -> str:
    found = NEEDS.search(block.mark)
    return "" if found is None or importlib.util.find_spec(found["module"]) else found["module"]


def is_file(block: Marked) -> bool:
    return block.mark.startswith("file:")


def environment() -> dict[str, str]:
    """A reader's: no server is named, nothing is allowed that nobody typed, our commands are on the
    path.
    """
    kept = {name: value for name, value in os.environ.items() if name != ALLOW}
    return {
        **kept,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "MPLBACKEND": "Agg",
    }


def run(block: Marked, folder: Path) -> None:
    """Raises AssertionError with what the block printed where it failed or did not end; nothing of
    it lives on.
    """
    code = shortened(block.code) if "brief" in block.mark else block.code
    command = (
        [sys.executable, "-c", code]
        if block.language == "python"
        else ["bash", "-euo", "pipefail", "-c", code]
    )
    with (folder / "said.txt").open("w+", encoding="utf-8") as said:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            ended = process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            ended = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        assert ended == 0, f"{code}\nended with {ended}:\n{said.read()[-3000:]}"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [page for page in pages() if marked_blocks(page)], ids=named)
def test_every_command_that_a_page_calls_runnable_runs(page: Path, tmp_path: Path) -> None:
    blocks = marked_blocks(page)
    for block in filter(
        is_file, blocks
    ):  # a page may show the command before the module that it names
        (tmp_path / block.mark.removeprefix("file:").strip()).write_text(block.code, "utf-8")
    for block in blocks:
        if is_file(block):
            continue
        if lacks := missing(block):
            pytest.skip(f"needs {lacks}")
        else:
            run(block, tmp_path)


# --- the notebook of the docs: it runs as it stands, and its stored outputs are those of a run


NOTEBOOK = HOUSE / "docs" / "first_run.ipynb"


@pytest.mark.slow
def test_the_notebook_runs_as_it_stands(tmp_path: Path) -> None:
    for name in ("nbclient", "ipykernel", "matplotlib"):
        pytest.importorskip(name, reason="needs the extra: pip install 'es-queue[docs]'")
    shutil.copy(NOTEBOOK, tmp_path / NOTEBOOK.name)
    command = [sys.executable, "-m", "jupyter", "execute", NOTEBOOK.name, "--timeout=180"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert list((tmp_path / "runs").glob("*/checkpoints/best.npz"))


# --- the site builds from the pages, strictly: every page is in its navigation, every link leads
# somewhere


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="needs the extra: pip install 'es-queue[docs]'")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    done = subprocess.run(
        command, cwd=HOUSE, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "tutorial" / "index.html").exists()
