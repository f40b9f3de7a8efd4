"""What es-master prints at the start for workers on other terminals."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from es_queue.config.run_config import RunConfig
from es_queue.numerics.noise_table import NoiseTable
from es_queue.security.user_code import ALLOW, loose_modules
from es_queue.util.run_folder import NamedRun
from master.services.private_server import PrivateServer
from master.services.start_lines import start_lines
from workers.episode import EpisodeControl
from workers.join import join

WORLDS = """
from gymnasium.envs.classic_control import CartPoleEnv as Pole
def make_pole(): return Pole()
def loss(vector, seed): return float(-(vector * vector).sum())
def measure(environment): return [1.0]
"""


def install_lab(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the package ``lab`` importable as an installed one."""
    (folder / "lab").mkdir()
    (folder / "lab" / "__init__.py").touch()
    (folder / "lab" / "worlds.py").write_text(WORLDS)
    (folder / "lab-1.dist-info").mkdir()
    (folder / "lab-1.dist-info" / "top_level.txt").write_text("lab\n")
    (folder / "lab-1.dist-info" / "METADATA").write_text("Name: lab\nVersion: 1\n")
    monkeypatch.syspath_prepend(folder)
    for name in ("lab", "lab.worlds"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def join_line(**settings: Any) -> str:
    modules = loose_modules(RunConfig(backend="stock", **settings))
    return start_lines("redis://h", "default", NamedRun("r", Path("f")), None, modules)["join"]


def test_the_join_line_allows_the_loose_modules_of_a_run_and_no_installed_ones() -> None:
    settings = {"env": "my_maze:Maze-v0", "policy": "numpy.lab:Policy"}
    assert join_line(**settings) == "ES_QUEUE_ALLOW=installed,my_maze rq worker --url redis://h"
    packaged = {"env": "numpy.lab:Maze-v0", "policy": "numpy.lab:Policy"}
    assert join_line(**packaged) == join_line(env="CartPole-v1") == "rq worker --url redis://h"


def test_a_class_of_an_installed_package_needs_no_permission_in_the_join_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_lab(tmp_path, monkeypatch)
    importlib.import_module("lab.worlds")
    assert join_line(env="lab.worlds:Pole") == "rq worker --url redis://h"

    monkeypatch.setenv(ALLOW, "installed")
    config = RunConfig(seed=1, backend="stock", env="lab.worlds:Pole")
    assert join(config, EpisodeControl(), table=NoiseTable.in_memory(2**16)).numerics


def test_the_join_line_of_a_private_server_has_its_address(tmp_path: Path) -> None:
    server = PrivateServer(tmp_path)
    lines = start_lines(server.url, "night", NamedRun("r", Path("f")), server)
    assert lines["join"].endswith(f"rq worker --url {server.url} night")


@pytest.mark.parametrize("by_flag", [True, False])
def test_a_password_file_is_named_where_a_command_needs_it(
    by_flag: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not by_flag:
        monkeypatch.setenv("ES_QUEUE_REDIS_PASSWORD_FILE", "/keys/es pass")
    url, file = "redis://ada:secret@h:7/1", "/keys/es pass" if by_flag else None
    lines = start_lines(url, "night", NamedRun("r", Path("f")), None, ["maze"], file)
    assert lines["watch"].endswith(
        "es-status ./f --redis-url redis://ada@h:7/1 --redis-password-file '/keys/es pass'"
    )
    assert lines["join"] == (
        "ES_QUEUE_REDIS_PASSWORD_FILE='/keys/es pass' "
        "RQ_CONNECTION_CLASS=es_queue.protocol.connection.RedisWithPassword "
        "ES_QUEUE_ALLOW=installed,maze rq worker --url redis://ada@h:7/1 night"
    )
    assert lines["stay"] == (
        "ES_QUEUE_ALLOW=installed,maze es-worker night --redis-url redis://ada@h:7/1 "
        "--redis-password-file '/keys/es pass'"
    )


def test_a_password_without_a_file_leaves_a_command_that_a_shell_accepts() -> None:
    lines = start_lines("redis://:secret@h", "night", NamedRun("r", Path("f")), None)
    assert lines["join"] == "rq worker night  # RQ_REDIS_URL must hold this server's URL"
    assert lines["stay"] == "es-worker night  # RQ_REDIS_URL must hold this server's URL"
    assert "secret" not in str(lines)
