"""Atari games: ids of every era, and the emulator as an environment of Gymnasium.

Images are prepared by Gymnasium's AtariPreprocessing and FrameStackObservation, and the emulator is
the Arcade Learning Environment (package ale-py). All randomness comes from the episode's seed
through es-queue's own stream, so an episode is the same in any process.

In v0 and v5 a frame repeats the previous action with probability 0.25, in v3 and v4 never. A plain
name holds an action for 2 to 4 frames, at random; ``Deterministic`` for 4 (Space Invaders: 3,
because its shots blink); ``NoFrameskip`` for 1; ``ALE/…-v5`` for 4. ``-ram`` observes the memory.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
from numpy.typing import NDArray

from es_queue.environments.interface import EnvironmentRequest
from es_queue.environments.vector import Mt19937
from es_queue.errors import MissingPackage, UsageError

#: Frames after which an episode is over: half an hour of play.
MAX_FRAMES = 108_000
STICKY = 0.25
ENTRY_POINT = "es_queue.environments.atari:AtariGame"
SpecAndArguments = tuple[EnvSpec, dict[str, Any]]
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


def parse_atari_id(name: str) -> dict[str, Any] | None:
    """The arguments of AtariGame that an id means; None if it names no Atari game."""
    match = _FORM.fullmatch(name)
    if match is None:
        return None
    modern, game, word = bool(match["ale"]), match["game"], match["skip"]
    version = match["version"] or ("5" if modern else "4")
    if modern != (version == "5") or (word if modern else game not in _GAMES.split()):
        return None
    # A digit begins a word only at the end of the name, as in TicTacToe3D.
    words = r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[a-z])(?=\d+[A-Z])"
    deterministic = 3 if game == "SpaceInvaders" and not modern else 4
    return {
        "rom": re.sub(words, "_", game).lower(),
        "obs_type": "ram" if match["ram"] else "image",
        "frameskip": {"NoFrameskip": 1, "Deterministic": deterministic}.get(
            word, 4 if modern else "2-4"
        ),
        "repeat_action_probability": STICKY if version in "05" else 0.0,
    }


def find_game(request: EnvironmentRequest) -> SpecAndArguments | None:
    """None if the id is not an Atari game's. A request with wrappers gets colour frames and none of
    Gymnasium's wrappers. Raises MissingPackage without the emulator, UsageError for invalid
    arguments.
    """
    module, _, name = request.id.rpartition(":")
    arguments = parse_atari_id(name) if module in ("", "ale_py") else None
    known = gymnasium.registry.get(name)
    if arguments is None or (known and not str(known.entry_point).startswith("ale_py")):
        return None
    if arguments["rom"] not in rom_ids(name):
        return None
    if request.wrappers and arguments["obs_type"] == "image":
        arguments["obs_type"] = "rgb"
    arguments |= {"max_num_frames_per_episode": MAX_FRAMES, **dict(request.arguments)}
    low, high = skip_range(arguments["frameskip"])
    size, stack = arguments.pop("screen_size", 84), arguments.pop("stack", 4)
    limit = arguments["max_num_frames_per_episode"]
    for number, value, least in (
        ("screen_size", size, 1),
        ("stack", stack, 1),
        ("max_num_frames_per_episode", limit, 1),
        ("noop_max", arguments.get("noop_max", 0), 0),
    ):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise UsageError(f"env_arg {number} is {value!r}: use whole numbers from {least}")
    wrappers: tuple[Any, ...] = ()
    if arguments["obs_type"] == "image":
        held = 1
        if low == high:  # the wrapper holds the actions
            held, arguments["frameskip"] = low, 1
        wrappers = (
            AtariPreprocessing.wrapper_spec(noop_max=0, frame_skip=held, screen_size=size),
            FrameStackObservation.wrapper_spec(stack_size=stack),
        )
    steps = -(-limit // low)
    spec = EnvSpec(name, ENTRY_POINT, max_episode_steps=steps, additional_wrappers=wrappers)
    return spec, arguments


def rom_ids(name: str) -> list[str]:
    """The emulator's names of its games. Raises MissingPackage, which ``name`` needs."""
    try:
        importlib.import_module("ale_py")
        names: list[str] = importlib.import_module("ale_py.roms").get_all_rom_ids()
    except ImportError as error:
        raise MissingPackage(
            f"{name} needs a package that is not installed: pip install 'es-queue[atari]'"
        ) from error
    return names


def skip_range(frameskip: Any) -> tuple[int, int]:
    """The fewest and the most frames that an action holds. Raises UsageError."""
    match = re.fullmatch(r"(\d{1,3})(?:-(\d{1,3}))?", str(frameskip))
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high:
        raise UsageError(
            f"env_arg frameskip is {frameskip!r}: use a whole number of 1 or more, "
            "or a range such as 2-4"
        )
    return low, high


class AtariGame(gymnasium.Env[NDArray[Any], Any]):
    """One game. Raises UsageError for invalid arguments.

    rom: the emulator's name of it
    obs_type: ram (float32[128] in 0…1), rgb (uint8[height, width, 3]), or image (in grey)
    frameskip: frames that an action holds: a number, or ``2-4`` for a random number
    noop_max: at most this many frames, at least one, pass before the policy acts; 0 for none
    repeat_action_probability: with which a frame repeats the previous action
    max_num_frames_per_episode: including those before the first action
    full_action_space: all 18 actions, also those without effect in this game
    mode, difficulty: the game's switches, None for its default
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 60}  # noqa: RUF012 - as Gymnasium has it

    def __init__(
        self,
        rom: str,
        obs_type: str,
        frameskip: int | str = 4,
        repeat_action_probability: float = 0.0,
        noop_max: int = 30,
        max_num_frames_per_episode: int = MAX_FRAMES,
        full_action_space: bool = False,
        mode: int | None = None,
        difficulty: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        if obs_type not in ("ram", "rgb", "image"):
            raise UsageError(f"env_arg obs_type is {obs_type!r}: use image, rgb or ram")
        sticky = repeat_action_probability
        if isinstance(sticky, bool) or not isinstance(sticky, int | float) or not 0 <= sticky < 1:
            raise UsageError(
                f"env_arg repeat_action_probability is {sticky!r}: use a number from 0 to below 1"
            )
        self._low, self._high = skip_range(frameskip)
        self._frameskip = frameskip  # AtariPreprocessing asks for it
        self._obs_type, self._sticky, self._noop_max = obs_type, sticky, noop_max
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "render_fps": 60 / self._low}
        self.ale = _load_console(rom, max_num_frames_per_episode, mode, difficulty)
        self._initial_state = self.ale.cloneState(include_rng=True)
        self._actions = (
            self.ale.getLegalActionSet() if full_action_space else self.ale.getMinimalActionSet()
        )
        self._last = self._actions[0]
        self._stream = Mt19937(0)
        self.action_space = gymnasium.spaces.Discrete(len(self._actions))
        self.observation_space = (
            gymnasium.spaces.Box(0.0, 1.0, (self.ale.getRAMSize(),), np.float32)
            if obs_type == "ram"
            else gymnasium.spaces.Box(0, 255, self._observation().shape, np.uint8)
        )

    def get_action_meanings(self) -> list[str]:
        return [action.name for action in self._actions]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._stream.seed(int(self.np_random.integers(2**31)) if seed is None else seed)
        self._power_on()
        for _ in range(self._stream.integer(1, self._noop_max) if self._noop_max else 0):
            self.ale.act(self._actions[0])
        if self.ale.game_over():
            self._power_on()
        return self._observation(), {"lives": self.ale.lives()}

    def _power_on(self) -> None:
        # After only one of the two, Qbert and Tennis remember the game before.
        self.ale.restoreState(self._initial_state)
        self.ale.reset_game()
        self._last = self._actions[0]

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        low, high = self._low, self._high
        frames = low if low == high else self._stream.integer(low, high)
        reward, chosen = 0.0, self._actions[int(action)]
        for _ in range(frames):
            if not self._sticky or self._stream.uniform(0.0, 1.0) >= self._sticky:
                self._last = chosen
            reward += self.ale.act(self._last)
            if self.ale.game_over():
                break
        over, cut = self.ale.game_over(with_truncation=False), self.ale.game_truncated()
        return self._observation(), reward, over, cut, {"lives": self.ale.lives()}

    def render(self) -> Any:
        return self.ale.getScreenRGB()

    def _observation(self) -> NDArray[Any]:
        ale, kind = self.ale, self._obs_type
        seen: NDArray[Any] = (
            ale.getRAM() / np.float32(255)
            if kind == "ram"
            else ale.getScreenRGB()
            if kind == "rgb"
            else ale.getScreenGrayscale()
        )
        return seen


def _load_console(rom: str, frames: int, mode: int | None, difficulty: int | None) -> Any:
    """An ALEInterface with the game. es-queue adds the randomness, so the emulator's own is off."""
    ale_py, roms = importlib.import_module("ale_py"), importlib.import_module("ale_py.roms")
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    console = ale_py.ALEInterface()
    console.setFloat("repeat_action_probability", 0.0)
    console.setInt("random_seed", 0)
    console.setInt("max_num_frames_per_episode", frames)
    console.loadROM(roms.get_rom_path(rom))
    for name, value, offered, choose in (
        ("mode", mode, console.getAvailableModes(), console.setMode),
        ("difficulty", difficulty, console.getAvailableDifficulties(), console.setDifficulty),
    ):
        if value is None:
            continue
        if value not in offered:
            raise UsageError(
                f"env_arg {name} is {value!r}, but {rom} has {', '.join(map(str, offered))}"
            )
        choose(value)
    return console
