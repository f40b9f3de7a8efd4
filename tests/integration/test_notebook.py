"""train() in a notebook's kernel: what it displays, and what its stop button leaves."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.processes import MARK, marked, wait_for

pytestmark = pytest.mark.slow
CELL = """
from es_queue import RunConfig, train
endless = RunConfig(env="CartPole-v1", target_reward="none")
train(endless, recipe="none", workers=1, run="cell", runs_dir={folder!r}, noise_dir={folder!r})
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[tuple[Any, Any, str]]:
    """(manager, client, mark of its processes) of a kernel that has started."""
    client_module = pytest.importorskip("jupyter_client")
    pytest.importorskip("ipykernel")
    mark = os.urandom(8).hex()
    manager, client = client_module.manager.start_new_kernel(
        kernel_name="python3", env={**os.environ, MARK: mark}, cwd=str(tmp_path)
    )
    try:
        yield manager, client, mark
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        wait_for(lambda: not marked(mark), "the kernel's processes end")


def displayed(client: Any, count: int) -> list[dict[str, Any]]:
    """The contents of so many displays of the running cell."""
    shown: list[dict[str, Any]] = []
    deadline = time.monotonic() + 60
    while len(shown) < count:
        message = client.get_iopub_msg(timeout=max(0.1, deadline - time.monotonic()))
        assert message["msg_type"] != "error", message["content"]
        if message["msg_type"] in ("display_data", "update_display_data"):
            shown.append({"type": message["msg_type"], **message["content"]})
    return shown


def test_the_stop_button_ends_a_run_that_is_displayed_and_leaves_nothing_running(
    kernel: tuple[Any, Any, str], tmp_path: Path
) -> None:
    manager, client, mark = kernel
    before = marked(mark)
    request = client.execute(CELL.format(folder=str(tmp_path)))
    shown = displayed(client, 3)
    assert [one["type"] for one in shown] == ["display_data", *["update_display_data"] * 2]
    assert len({one["transient"]["display_id"] for one in shown}) == 1
    assert "<pre" in shown[0]["data"]["text/html"] and "evaluation" in shown[2]["data"]["text/html"]
    assert "generation " in shown[2]["data"]["text/plain"]
    assert len(marked(mark)) > len(before)
    manager.interrupt_kernel()
    reply = client.get_shell_msg(timeout=60)
    while reply["parent_header"].get("msg_id") != request:
        reply = client.get_shell_msg(timeout=60)
    assert (reply["content"]["status"], reply["content"]["ename"]) == ("error", "KeyboardInterrupt")
    assert marked(mark).keys() == before.keys(), "only the kernel is left"
    assert list((tmp_path / "cell" / "checkpoints").glob("generation-*.npz")), "it can be resumed"
