"""The ids of Atari games mean what they meant when they were new."""

from __future__ import annotations

import pytest

from es_queue.environments.atari.ids import AtariId, parse_atari_id, plain_arguments
from tests.cases import each_case


@each_case(
    ("name", "rom", "ram", "skip", "sticky"),
    [
        ("Pong-v0", "pong", False, (2, 4), 0.25),
        ("Venture-v4", "venture", False, (2, 4), 0.0),
        ("Pong", "pong", False, (2, 4), 0.0),
        ("PongDeterministic-v0", "pong", False, (4, 4), 0.25),
        ("PongDeterministic-v3", "pong", False, (4, 4), 0.0),
        ("PongDeterministic-v4", "pong", False, (4, 4), 0.0),
        ("SpaceInvadersDeterministic-v4", "space_invaders", False, (3, 3), 0.0),
        ("PongNoFrameskip-v0", "pong", False, (1, 1), 0.25),
        ("MsPacmanNoFrameskip-v4", "ms_pacman", False, (1, 1), 0.0),
        ("Pong-ram-v0", "pong", True, (2, 4), 0.25),
        ("Seaquest-ramDeterministic-v4", "seaquest", True, (4, 4), 0.0),
        ("ALE/Pong-v5", "pong", False, (4, 4), 0.25),
        ("ALE/SpaceInvaders-v5", "space_invaders", False, (4, 4), 0.25),
        ("ALE/Pong-ram-v5", "pong", True, (4, 4), 0.25),
        ("ALE/UpNDown", "up_n_down", False, (4, 4), 0.25),
        ("ALE/TicTacToe3D-v5", "tic_tac_toe_3d", False, (4, 4), 0.25),
    ],
)
def test_an_id_says_which_game_and_how_an_action_is_held(
    name: str, rom: str, ram: bool, skip: tuple[int, int], sticky: float
) -> None:
    about = parse_atari_id(name)
    assert about is not None
    assert (about.rom, about.ram, about.skip, about.sticky) == (rom, ram, skip, sticky)


@each_case(
    "name",
    [
        "CartPole-v0",
        "BipedalWalker-v3",
        "Pong-v5",
        "Pong-v1",
        "ALE/Pong-v4",
        "ALE/PongDeterministic-v5",
        "Tetris-v4",
        "pong-v4",
        "Pong v4",
        "",
    ],
)
def test_other_ids_are_none_of_an_atari_game(name: str) -> None:
    assert parse_atari_id(name) is None


def test_gymnasiums_own_class_counts_frames_up_to_an_end_that_it_leaves_out() -> None:
    assert plain_arguments(AtariId("Pong", False, (2, 4), 0.25))["frameskip"] == (2, 5)
    assert plain_arguments(AtariId("Pong", True, (4, 4), 0.0))["frameskip"] == 4


def test_every_game_of_the_emulator_is_found_by_its_id_and_every_old_name_is_a_game() -> None:
    roms = pytest.importorskip("ale_py.roms", reason="ale-py is not installed").get_all_rom_ids()
    found = [parse_atari_id(f"ALE/{rom.title().replace('_', '')}-v5") for rom in roms]
    assert [one.rom for one in found if one is not None] == roms
    old = [
        name
        for name in (rom.title().replace("_", "") for rom in roms)
        if parse_atari_id(f"{name}-v4")
    ]
    assert len(old) == 62
