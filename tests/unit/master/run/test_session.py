"""Resume never mixes two runs; changes from Python are those that the command may make."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from es_queue import train
from es_queue.errors import RunFolderError, UsageError
from es_queue.run_folder import NamedRun
from master.loop import checkpoint
from master.run.warm_start import newest_checkpoint
from tests.parts import setup_of, trained

PLACE = NamedRun("same", Path("runs/same"))
SETUP = setup_of("pgpe")


def saved(run: str = "same", generation: int = 3, **changes: object) -> bytes:
    state = replace(trained(SETUP), generation=generation)
    centre = SETUP.strategy.centre(SETUP.strategy.published(state.strategy))
    return checkpoint.encode(replace(SETUP.config, **changes), SETUP.spec, run, state, centre)  # type: ignore[arg-type]


def test_the_newer_of_disk_and_redis_is_resumed_although_their_budgets_differ() -> None:
    config, state = newest_checkpoint(
        PLACE, saved(generation=3, generations=7), saved(generation=5, generations=9)
    )
    assert (state.generation, config.generations) == (5, 9)
    assert newest_checkpoint(PLACE, saved(generation=6), saved(generation=5))[1].generation == 6


def test_a_checkpoint_of_another_run_is_refused_wherever_it_is() -> None:
    for disk, stored in ((saved("other"), None), (None, saved("other")), (saved("other"), saved())):
        with pytest.raises(
            RunFolderError,
            match=(
                r"holds run 'other', not same: continue it with --resume other, or give the "
                r"--run-dir of same"
            ),
        ):
            newest_checkpoint(PLACE, disk, stored)


def test_two_runs_of_one_name_are_not_mixed() -> None:
    with pytest.raises(
        RunFolderError,
        match=(
            r"^runs/same and Redis hold two different runs called same \(seed, sigma differ\): "
            r"give another --run-dir"
        ),
    ):
        newest_checkpoint(PLACE, saved(), saved(seed=4, sigma=0.5, generation=5))


def test_a_damaged_checkpoint_leaves_the_other() -> None:
    assert newest_checkpoint(PLACE, saved()[:-9], saved())[1].generation == 3
    with pytest.raises(RunFolderError, match="this checkpoint cannot be resumed"):
        newest_checkpoint(PLACE, saved()[:-9], None)


def test_an_option_of_the_command_that_python_does_not_have_is_refused() -> None:
    for name, sentence in (
        ("xyzzy", "no option xyzzy$"),
        ("worker", r"no option worker; did you mean workers\?"),
        ("final_episodes", r"it is a setting, so use config=RunConfig\(.*final_episodes=\.\.\.\)"),
    ):
        with pytest.raises(UsageError, match=sentence):
            train(SETUP.config, **{name: 5})
