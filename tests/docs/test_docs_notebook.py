"""The notebook of the docs: it runs as it stands, and its stored outputs are those of a run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import HOUSE

NOTEBOOK = HOUSE / "docs" / "first_run.ipynb"


@pytest.mark.slow
def test_the_notebook_runs_as_it_stands(tmp_path: Path) -> None:
    for name in ("nbclient", "ipykernel", "matplotlib"):
        pytest.importorskip(name, reason="needs the extra: pip install 'es-queue[docs]'")
    shutil.copy(NOTEBOOK, tmp_path / NOTEBOOK.name)
    command = [sys.executable, "-m", "jupyter", "execute", NOTEBOOK.name, "--timeout=180"]
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("RQ_REDIS_URL", "REDIS_URL")
    }
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert list((tmp_path / "runs").glob("*/checkpoints/best.npz"))
