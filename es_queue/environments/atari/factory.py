"""Makes an Atari environment: the preprocessed game, or ale-py's own environment."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from es_queue.config.run_config import AUTO, NONE
from es_queue.environments.atari.ids import AtariId, parse_atari_id, plain_arguments
from es_queue.environments.atari.settings import PRESETS, settings_of
from es_queue.environments.interface import EnvironmentRequest
from es_queue.errors import MissingPackage, UsageError

PLAIN_ENTRY_POINT = "ale_py.env:AtariEnv"
ENTRY_POINT = "es_queue.environments.atari.game:AtariGame"
SpecAndArguments = tuple[EnvSpec, dict[str, Any]]


def find_game(request: EnvironmentRequest) -> SpecAndArguments | None:
    """The spec and the arguments of the requested game; None if the id is not an Atari game's.

    Raises MissingPackage without the emulator, UsageError for settings that do not fit the game or
    each other.
    """
    module, _, name = request.id.rpartition(":")
    about = parse_atari_id(name) if module in ("", "ale_py") else None
    if about is None or _is_registered_elsewhere(name) or about.rom not in rom_ids(name):
        validate_preprocessing(request)
        return None
    chosen = _resolve_preset(about, name, request)
    given = dict(request.arguments)
    if chosen == NONE:
        arguments = plain_arguments(about)
        return EnvSpec(name, PLAIN_ENTRY_POINT, kwargs=arguments), {**arguments, **given}
    settings = {
        **PRESETS[chosen],
        "frameskip": about.frameskip,
        "repeat_action_probability": about.sticky,
        **given,
    }
    spec = EnvSpec(
        name,
        ENTRY_POINT,
        kwargs={"rom": about.rom},
        max_episode_steps=settings_of(settings).step_limit(),
    )
    return spec, {"rom": about.rom, **settings}


def _resolve_preset(about: AtariId, name: str, request: EnvironmentRequest) -> str:
    """The name of the preprocessing, never "auto"."""
    chosen = request.preprocessing
    if chosen == AUTO:
        return NONE if request.wrappers else "ram" if about.ram else "dqn"
    if about.ram and chosen not in ("ram", NONE):
        raise UsageError(
            f"preprocessing is {chosen}, but {name} observes the console's memory: use ram, "
            "or the id without -ram"
        )
    return chosen


def validate_preprocessing(request: EnvironmentRequest) -> None:
    if request.preprocessing not in (AUTO, NONE):
        raise UsageError(
            f"preprocessing is {request.preprocessing}, but {request.id} is not one of "
            f"es-queue's Atari games: leave preprocessing out"
        )


def _is_registered_elsewhere(name: str) -> bool:
    """Whether another package has registered an environment of that name."""
    spec = gymnasium.registry.get(name)
    return spec is not None and not str(spec.entry_point).startswith("ale_py")


def rom_ids(name: str) -> list[str]:
    """The emulator's names of its games. Raises MissingPackage if ``name`` needs an emulator
    that is not installed.
    """
    try:
        importlib.import_module("ale_py")
        names: list[str] = importlib.import_module("ale_py.roms").get_all_rom_ids()
    except ImportError as error:
        raise MissingPackage(
            f"{name} needs a package that is not installed: pip install 'es-queue[atari]'"
        ) from error
    return names
