"""What a run may have a worker import: what its operator allows, by default what is installed,
never a path.
"""

from __future__ import annotations

import sys
from functools import lru_cache, partial
from operator import methodcaller
from os import system
from pathlib import Path
from types import SimpleNamespace

import pytest

from es_queue.config.run_config import RunConfig
from es_queue.errors import MissingPackage
from es_queue.numerics.noise_table import NoiseTable
from es_queue.security.user_code import (
    ALLOW,
    check_called,
    disallowed_reason,
    environment_allowing,
    modules_to_allow,
    named_modules,
)
from tests.cases import each_case
from workers.episode import EpisodeControl
from workers.join import Refusal, join


def test_the_modules_of_a_run_are_those_of_its_environment_and_wrappers() -> None:
    config = RunConfig(
        env="lab.worlds:Maze-v0", wrapper=("lab.wrap:Crop", "other:Wrap", "lab.worlds:Thing")
    )
    assert named_modules(config) == ["lab.worlds", "lab.wrap", "other"]
    assert named_modules(RunConfig(env="CartPole-v1")) == []


@each_case("module", ["gymnasium", "gymnasium.wrappers", "es_queue.environments"])
def test_installed_packages_are_allowed_by_default(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ALLOW, raising=False)
    assert disallowed_reason([module]) == ""


@each_case("module", ["os", "subprocess", "builtins", "loose_file", "tests.tiny", "gymnasiu"])
def test_loose_files_and_pythons_own_library_are_not(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ALLOW, raising=False)
    said = disallowed_reason([module])
    assert f"the module {module}" in said and f"{ALLOW}=installed,{module}" in said


def test_the_operator_decides() -> None:
    assert (
        disallowed_reason(["lab.worlds"], "lab") == disallowed_reason(["lab"], " other , lab") == ""
    )
    assert disallowed_reason(["lab.worlds", "gymnasium"], "installed,lab") == ""
    assert disallowed_reason(["laboratory"], "lab") and disallowed_reason(["gymnasium"], "lab"), (
        "without the word installed, nothing else"
    )
    assert disallowed_reason(["gymnasium"], "") and disallowed_reason([], "") == ""
    assert disallowed_reason(["lab"], "lab.worlds"), "what is below a module is not the module"


@each_case("name", ["/tmp/evil", "../evil", "evil.py/x", ".evil", "a..b", "a b", "", "évil", "a\n"])
def test_what_is_no_module_is_refused_whatever_is_allowed(name: str) -> None:
    assert disallowed_reason([name], f"installed,{name}")


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


def test_who_names_modules_allows_them_to_the_workers_that_he_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(ALLOW, raising=False)
    assert environment_allowing(["lab.worlds", "other"]) == {ALLOW: "installed,lab.worlds,other"}
    assert environment_allowing(["numpy.testing", "lab", "subprocess"], ["lab", "box2d"]) == {
        ALLOW: "installed,lab,box2d"
    }, "a package's functions are allowed only by the user's own words"
    monkeypatch.setenv(ALLOW, "lab")
    assert environment_allowing(["other"]) == {ALLOW: "lab"}, "what the operator has said stands"


def measured(vector: object) -> float:
    return 1.0


class Measure:
    def __call__(self, vector: object) -> float:
        return 1.0

    def loss(self, vector: object) -> float:
        return 1.0


@each_case(
    "function",
    [measured, lru_cache(measured), partial(measured), Measure, Measure(), Measure().loss],
)
def test_what_an_allowed_module_defines_is_called(
    function: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOW, __name__)
    check_called("objective", __name__, function)
    with pytest.raises(MissingPackage, match=f"{ALLOW}=installed,{__name__}"):
        monkeypatch.setenv(ALLOW, "other")
        check_called("objective", __name__, function)


def test_a_borrowed_function_needs_both_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """That which the run names, and that which defines it."""
    monkeypatch.setitem(sys.modules, "front", SimpleNamespace(measured=measured))
    both = f"front,{__name__}"
    assert modules_to_allow(RunConfig(objective="front:measured")) == both.split(",")
    with pytest.raises(MissingPackage, match=f"{ALLOW}=installed,{both}"):
        monkeypatch.setenv(ALLOW, "front")
        check_called("objective", "front", measured)
    monkeypatch.setenv(ALLOW, both)
    check_called("objective", "front", measured)


@each_case("function", [system, partial(system), partial(partial(system)), methodcaller("run")])
def test_what_an_allowed_module_borrows_from_python_is_not_called(
    function: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOW, f"{__name__},posix,os,operator")
    with pytest.raises(MissingPackage, match="call it in a function of your module"):
        check_called("objective", __name__, function)
