"""Which modules a worker imports for a run: those that its operator allows, never a path."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from es_queue.config.run_config import RunConfig
from es_queue.errors import RunFolderError
from es_queue.numerics.noise_table import NoiseTable
from es_queue.user_code import (
    ALLOW,
    INSTALLED,
    allowing,
    named_modules,
    refused_module,
    require_trust,
)
from tests.cases import each_case
from workers.heartbeat import EpisodeControl
from workers.player import Refusal, join


def test_registered_ids_and_gymnasiums_wrappers_need_no_permission() -> None:
    config = RunConfig(env="ale_py:ALE/Pong-v5", wrapper=("gymnasium.wrappers:FlattenObservation",))
    assert named_modules(config) == []
    assert named_modules(RunConfig(env="gymnasium:make")) == ["gymnasium"], "it imports any module"


@each_case(
    ("module", "allowed", "refused"),
    [
        ("gymnasium.wrappers", None, ""),
        ("os", None, "os"),
        ("lab.worlds", "lab", ""),
        ("laboratory", "lab", "laboratory"),
        ("lab", "", "lab"),
        ("lab", "*", ""),
    ],
)
def test_the_operator_decides_what_a_worker_imports(
    module: str, allowed: str | None, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ALLOW, raising=False)
    if allowed is not None:
        monkeypatch.setenv(ALLOW, allowed)
    assert refused_module([module], INSTALLED) == refused


@each_case("name", ["/tmp/evil", "../evil", "evil.py/x", ".evil", "a..b", "a b", "évil", "a\n"])
def test_what_is_no_module_is_refused_whatever_is_allowed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOW, f"*,installed,{name}")
    assert refused_module([name], INSTALLED) == name


def test_a_worker_refuses_before_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv(ALLOW, raising=False)
    table = NoiseTable.in_memory(2**16)
    for config in (
        RunConfig(env="planted:X-v0", backend="stock"),
        RunConfig(env="CartPole-v1", wrapper=("planted:X",), backend="stock"),
    ):
        with pytest.raises(Refusal, match="custom code"):
            join(config, EpisodeControl(), table=table)
    assert not (tmp_path / "ran").exists() and "planted" not in sys.modules
    monkeypatch.setenv(ALLOW, "planted")
    with pytest.raises(Exception, match="X"):
        join(RunConfig(env="planted:X-v0", backend="stock"), EpisodeControl(), table=table)
    assert (tmp_path / "ran").exists()


def test_a_file_may_name_what_the_user_named_and_with_trust_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(ALLOW, raising=False)
    for module in ("lab.worlds", "gymnasium", "os"):
        with pytest.raises(RunFolderError, match=f"run.npz names the module '{module}'.*--trust"):
            require_trust("run.npz", [module])
        require_trust("run.npz", [module], trust=True)
    require_trust("run.npz", ["lab.worlds"], named=["lab"])
    with allowing(["lab"]):
        require_trust("run.npz", ["lab.worlds"])
    assert ALLOW not in os.environ
