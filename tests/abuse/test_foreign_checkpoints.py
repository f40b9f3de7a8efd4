"""Files from a stranger: es-play runs no code that they name, and reads them within bounds of
memory.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_queue.config.run_config import RunConfig, every_setting
from es_queue.numerics.noise_table import NoiseTable
from es_queue.pretrained import path_of
from es_queue.slot_record import record_path
from es_queue.user_code import CODE_SETTINGS
from tests.integration.processes import BIN
from tests.unit.master.storage.test_generation_store import trained

#: A module in the folder where the user types: it says that it was imported.
EVIL = """
from pathlib import Path
Path(__file__).with_name("imported").touch()
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
from es_queue.policies import NumpyPolicy
gymnasium.register("Evil-v0", entry_point=CartPoleEnv)
class Wrapper(gymnasium.Wrapper): pass
class Evil(NumpyPolicy): pass
def measure(environment): return [1.0]
def objective(vector, seed): return 0.0
"""
NAMED: dict[str, dict[str, Any]] = {
    "environment": {"env": "evil:Evil-v0"},
    "policy": {"policy": "evil:Evil"},
    "wrapper": {"wrapper": ["evil:Wrapper"]},
    "objective": {"env": "", "objective": "evil:objective", "parameters": 4},
    "strategy": {"strategy": "evil:Strategy"},
    "behaviour": {"strategy": "novelty", "behaviour": "evil:measure"},
    "package inside": {"env": "evil.inner:Evil-v0"},
}
COMMAND = [str(BIN / "es-play")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a module in it."""
    (tmp_path / "evil.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ES_QUEUE_ALLOW", raising=False)
    monkeypatch.setenv("ES_QUEUE_NOISE_DIR", str(tmp_path / "noise"))
    return tmp_path


def changed_npz(source: Path, target: Path, **settings: Any) -> Path:
    """A checkpoint or record with other settings in its meta."""
    with np.load(source, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    meta = json.loads(arrays.pop("meta").item())
    meta["config"] |= {"backend": "stock", **settings}
    if "policy" in settings:
        del meta["config"]["biases"]  # a linear policy's own
    np.savez(target, meta=np.array(json.dumps(meta)), **arrays)
    return target


def play(
    folder: Path, *words: object, command: list[str] = COMMAND, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *map(str, words)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, **environment},
    )


def assert_refused(
    folder: Path, done: subprocess.CompletedProcess[str], module: str = "evil"
) -> None:
    assert not (folder / "imported").exists(), done.stderr
    assert done.returncode == 6 and done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
    assert module in done.stderr and "--trust" in done.stderr


@pytest.mark.parametrize("kind", [name for name in NAMED if name not in ("strategy", "behaviour")])
def test_a_checkpoint_brings_no_code_of_the_current_folder_to_run(kind: str, folder: Path) -> None:
    path = changed_npz(path_of("CartPole-v1"), folder / "gift.npz", **NAMED[kind])
    assert_refused(folder, play(folder, path))


@pytest.mark.parametrize("kind", ["environment", "policy", "strategy", "behaviour"])
def test_a_record_brings_no_code_to_run(kind: str, folder: Path) -> None:
    trained(folder / "run", strategy="novelty" if kind == "behaviour" else "openai_es")
    path = record_path(folder / "run", 1)
    changed_npz(path, path, **NAMED[kind])
    assert_refused(folder, play(folder, folder / "run", "--generation", 1, "--slot", "0+"))


@pytest.mark.parametrize("kind", ["environment", "policy"])
def test_a_seed_list_brings_no_code_to_run(kind: str, folder: Path) -> None:
    with np.load(path_of("CartPole-v1"), allow_pickle=False) as archive:
        meta = json.loads(archive["meta"].item())
    config = RunConfig(
        env="CartPole-v1",
        strategy="ga",
        env_seeds="generation",
        backend="stock",
        noise_size=2**14,
    )
    meta["config"] = {**config.to_dict(), **NAMED[kind]}
    if kind == "policy":
        del meta["config"]["biases"]  # a linear policy's own
    listed = {
        **meta,
        "kind": "es-queue seed list",
        "seeds": [1],
        "sigma": 0.1,
        "digest": "",
        "noise": NoiseTable.in_memory(2**14).digest,
    }
    (folder / "gift.json").write_text(json.dumps(listed))
    for words in ((), ("--export", "other.npz")):
        done = play(folder, "gift.json", *words)
        assert not (folder / "imported").exists() and done.returncode == 6, done.stderr
        if kind in ("policy", "objective"):
            assert_refused(folder, done)


@pytest.mark.parametrize("allow", ["", "installed,evil"])
def test_own_code_plays_with_trust_or_when_it_is_allowed(allow: str, folder: Path) -> None:
    path = changed_npz(path_of("CartPole-v1"), folder / "own.npz", env="evil:Evil-v0")
    done = (
        play(folder, path, "--episodes", 1, ES_QUEUE_ALLOW=allow)
        if allow
        else play(folder, path, "--episodes", 1, "--trust")
    )
    assert done.returncode == 0 and (folder / "imported").exists(), done.stderr


@pytest.mark.parametrize(
    "settings",
    [
        {"policy": "os:system"},
        {"wrapper": ["subprocess:run"]},
        {"env": "", "objective": "builtins:exec", "parameters": 4},
        {"env": "gymnasium:make"},
    ],
    ids=str,
)
def test_no_module_that_a_file_names_is_imported_installed_or_not(
    settings: dict[str, Any], folder: Path
) -> None:
    path = changed_npz(path_of("CartPole-v1"), folder / "gift.npz", **settings)
    module = next(str(value).strip("[]'").partition(":")[0] for value in settings.values() if value)
    assert_refused(folder, play(folder, path), module)


def test_every_setting_that_names_code_comes_by_the_gate() -> None:
    own = {name for name, one in every_setting().items() if one.own}
    assert own and own <= set(CODE_SETTINGS)
