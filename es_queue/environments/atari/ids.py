"""Meaning of Atari ids of every era: game, frames per action, sticky actions.

| version | probability that a frame repeats the previous action |
|---|---|
| v0, v5  | 0.25 |
| v3, v4  | 0 |

A plain name holds an action for 2 to 4 frames, at random; ``Deterministic`` for 4 (Space Invaders:
3, because its shots blink); ``NoFrameskip`` for 1; ``ALE/…-v5`` for 4. ``-ram`` observes the
console's memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

#: Frames after which an episode is over: half an hour of play.
MAX_FRAMES = 108_000
STICKY = 0.25
_FORM = re.compile(
    r"(?P<ale>ALE/)?(?P<game>[A-Z][A-Za-z0-9]*?)(?P<ram>-ram)?"
    r"(?P<skip>Deterministic|NoFrameskip)?(-v(?P<version>[0345]))?",
    re.ASCII,
)
#: The games that have ids without ``ALE/``.
_GAMES = """
    Adventure AirRaid Alien Amidar Assault Asterix Asteroids Atlantis BankHeist BattleZone BeamRider
    Berzerk Bowling Boxing Breakout Carnival Centipede ChopperCommand CrazyClimber Defender
    DemonAttack DoubleDunk ElevatorAction Enduro FishingDerby Freeway Frostbite Gopher Gravitar Hero
    IceHockey Jamesbond JourneyEscape Kangaroo Krull KungFuMaster MontezumaRevenge MsPacman
    NameThisGame Phoenix Pitfall Pong Pooyan PrivateEye Qbert Riverraid RoadRunner Robotank Seaquest
    Skiing Solaris SpaceInvaders StarGunner Tennis TimePilot Tutankham UpNDown Venture VideoPinball
    WizardOfWor YarsRevenge Zaxxon
"""


@dataclass(frozen=True)
class AtariId:
    """The meaning of an id.

    game:   in the ids' spelling: ``SpaceInvaders``; rom: in the emulator's: ``space_invaders``
    ram:    whether the memory is observed instead of the screen
    skip:   frames that an action holds, the fewest and the most
    sticky: probability with which a frame repeats the previous action
    """

    game: str
    ram: bool
    skip: tuple[int, int]
    sticky: float

    @property
    def rom(self) -> str:
        """A digit begins a word only at the end of the name, as in ``TicTacToe3D``."""
        words = r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[a-z])(?=\d+[A-Z])"
        return re.sub(words, "_", self.game).lower()

    @property
    def frameskip(self) -> int | str:
        """``skip`` as a setting."""
        low, high = self.skip
        return low if low == high else f"{low}-{high}"


def plain_arguments(about: AtariId) -> dict[str, Any]:
    """The arguments of ale-py's own environment class, whose range of frames excludes its upper
    end.
    """
    low, high = about.skip
    return {
        "game": about.rom,
        "obs_type": "ram" if about.ram else "rgb",
        "frameskip": low if low == high else (low, high + 1),
        "repeat_action_probability": about.sticky,
        "full_action_space": False,
        "max_num_frames_per_episode": MAX_FRAMES,
    }


def parse_atari_id(name: str) -> AtariId | None:
    """The meaning of an id; None if it names no Atari game. Without a version, it is the newest."""
    match = _FORM.fullmatch(name)
    if match is None:
        return None
    modern, game = bool(match["ale"]), match["game"]
    version = match["version"] or ("5" if modern else "4")
    if (
        modern != (version == "5")
        or (not modern and game not in _GAMES.split())
        or (modern and match["skip"])
    ):
        return None
    return AtariId(
        game,
        bool(match["ram"]),
        _skip(game, match["skip"], modern),
        STICKY if version in "05" else 0.0,
    )


def _skip(game: str, word: str | None, modern: bool) -> tuple[int, int]:
    if word == "NoFrameskip":
        return 1, 1
    if word == "Deterministic" or modern:
        return (3, 3) if game == "SpaceInvaders" and not modern else (4, 4)
    return 2, 4
