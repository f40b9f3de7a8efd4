"""RunConfig: the settings that can change a run's numbers: those of every run, and those of its
strategy and of its policy, which their classes declare.

From outside, all of them are flat names and values: flags, TOML files, recipes, the JSON stored
with a run, and Python's keywords. There is no connection, no path and no secret among them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from inspect import Parameter, Signature
from typing import Any, Self

from es_queue.backends import BACKENDS, format_backends
from es_queue.config.episode_rules import (
    DEFAULT_LIMIT,
    EpisodeRules,
    parse_bins,
    parse_bound,
    parse_bounds,
    parse_deadlines,
    parse_observe,
    parse_patience,
    parse_stall,
    parse_step_limit,
    parse_target,
)
from es_queue.config.schedules import parse_rate_schedule
from es_queue.config.settings import (
    AUTO,
    CUSTOM_NAME,
    NONE,
    FoundClasses,
    Setting,
    declared,
    is_plain,
    join,
    read_arguments,
    read_info,
    read_wrappers,
    setting,
    short,
    without_numpy,
)
from es_queue.errors import DecodeError, UsageError
from es_queue.files import parse_json
from es_queue.text import format_suggestion

SYNC, ASYNC = "sync", "async"
VIRTUAL = "virtual"
MAX_JSON = 2**20
#: Fewer episodes are too little evidence to discard training.
ROLLBACK_EPISODES = 50

#: The classes that ``--strategy`` and ``--policy`` name.
STRATEGIES = FoundClasses("es_queue.strategies", "name")
POLICIES = FoundClasses("es_queue.policies", "kinds")
#: What has settings of its own, by the setting that names it.
PARTS = {"policy": POLICIES, "strategy": STRATEGIES}
#: What other programs call a setting.
SYNONYMS = {
    "algo": "strategy",
    "env_id": "env",
    "layers": "hidden",
    "lr": "learning_rate",
    "n_iterations": "generations",
    "n_timesteps": "max_steps",
    "net_arch": "hidden",
    "noise_std": "sigma",
    "npop": "population",
    "popsize": "population",
    "std": "sigma",
    "steps": "max_steps",
    "timesteps": "max_steps",
    "total_steps": "max_steps",
    "total_timesteps": "max_steps",
}
#: As an objective: other programs score the vectors (``workers.ask_tell``).
ASKED = "ask"
#: Settings of environments and policies, which an objective does not have.
OF_ENVIRONMENTS = (
    *("env_arg", "wrapper", "policy", "action_noise", "action_bins", "observe", "info"),
)
#: Settings that need generations which close on their own slots.
OF_GENERATIONS = ("min_steps", "audit", "rollback", "restart_deadlines")


@cache
def own_settings(part: str, name: str) -> dict[str, Setting]:
    """What a strategy or policy adds to the settings of every run, by name. Those of the user's own
    class are those of its base: it is not imported to read a file.
    """
    return dict(sorted(declared(_class_of(part, name).Settings).items()))


def _class_of(part: str, name: str) -> Any:
    if name == AUTO:
        return import_module("es_queue.strategies.auto").Auto
    if ":" in name:
        base = import_module(f"{PARTS[part].package}.base")
        return base.Policy if part == "policy" else base.Strategy
    return PARTS[part][name]


class _Signature:
    """The signature that help() and editors show."""

    def __get__(self, _: object, owner: type) -> Signature:
        named = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=one.default)
            for name, one in declared(RunConfig).items()
        ]
        return Signature([*named, Parameter("own", Parameter.VAR_KEYWORD)])


@dataclass(frozen=True, init=False)
class RunConfig:
    """The settings of a run. Runs with equal settings end with equal parameters, to the bit.

    own: (name, value) of the settings of its policy and of its strategy; as keywords and as
    attributes they are beside the others
    given: the names that had a value; a recipe may set the others
    """

    env: str = setting(
        "",
        "Gymnasium environment id, or module:Id for your own environment",
        group="problem",
        metavar="ID",
    )
    objective: str = setting(
        "",
        "your own function to maximise instead of an environment's return; it takes a float32 "
        "vector, or the vector and an integer seed; ask: other programs score the vectors",
        metavar="MODULE:FUNCTION",
    )
    parameters: int = setting(0, "length of the objective's vector", low=0, high=2**28)
    bounds: str = setting(
        "",
        "LOW:HIGH of each variable of the objective, joined by commas; one pair holds for all of "
        "them; in place of its attributes lower and upper",
        metavar="BOUNDS",
    )
    seed: int = setting(
        -1,
        "seed of all randomness of the run; a random one is printed and stored",
        low=-1,
        high=2**63 - 1,
        word="random",
    )
    env_arg: tuple[tuple[str, Any], ...] = setting(
        (),
        "argument for the environment's constructor; repeatable",
        read=read_arguments,
        metavar="KEY=VALUE",
    )
    wrapper: tuple[str, ...] = setting(
        (),
        "Gymnasium wrapper, applied in the order given; repeatable",
        read=read_wrappers,
        metavar="MODULE:CLASS",
    )
    backend: str = setting(
        AUTO, f"environment back end: {format_backends()}", choices=(AUTO, *BACKENDS)
    )
    policy: str = setting(
        "linear",
        "kind of policy (docs/policies.md describes them)",
        group="policy",
        choices=POLICIES,
        own="module:Class",
    )
    observe: str = setting(
        "all",
        "numbers of the observation that the policy receives, counted from 0, such as 0-13 or "
        "0,2,5-7; all gives it the whole observation",
        form=parse_observe,
        metavar="LIST",
        follows=("env_arg", "wrapper"),
    )
    action_bound: str = setting(
        "clip", "how a box action is kept inside its bounds", choices=("clip", "tanh")
    )
    action_bins: str = setting(
        "none",
        "discretise each number of a box action, and choose the value with the largest "
        "output: uniform:K for K evenly spaced values, or custom:A,B,... from -1 (lower "
        "bound) to 1 (upper bound); none is continuous",
        form=parse_bins,
        metavar="BINS",
    )
    action_noise: float = setting(
        0.0, "standard deviation of Gaussian noise added to box actions in training", low=0.0
    )
    obs_norm: bool = setting(
        True, "normalise observations by their running mean and standard deviation"
    )
    image_norm: bool = setting(
        False, "also normalise images, and other observations of more than 4096 numbers"
    )
    obs_clip: float = setting(
        5.0,
        "clip normalised observations to this many standard deviations; 0 disables",
        unit="standard deviations",
        low=0.0,
    )
    obs_sample: float = setting(
        0.25, "fraction of slots whose observations update the statistics", low=0.0, high=1.0
    )
    strategy: str = setting(
        AUTO,
        "the algorithm; auto is snes for policies of up to 2,000 parameters and pgpe for larger "
        "ones, or pgpe if a setting that it uses is given (docs/choosing.md)",
        group="search",
        choices=STRATEGIES,
        word=AUTO,
        own="module:Class",
    )
    population: int = setting(
        64, "individuals per generation (a pair counts as two)", low=2, high=1_000_000
    )
    population_max: int = setting(
        0,
        "largest population that --min-steps may reach; auto is 8 times --population",
        low=0,
        high=8_000_000,
        word="auto",
        follows=("population", "min_steps", "schedule"),
    )
    scale: float = setting(
        1.0,
        "enlarge the search for about this many times the workers: population, rates and "
        "schedules follow (docs/scale.md); may change during a run",
        low=1.0,
        high=1024.0,
        live=True,
    )
    min_steps: int = setting(
        0,
        "add slots to a generation until its episodes have this many steps; 0 disables",
        unit="steps",
        low=0,
        follows=("schedule",),
    )
    episodes: int = setting(
        1, "episodes per individual; the fitness is their mean", low=1, high=1000
    )
    env_seeds: str = setting(
        AUTO,
        "which individuals share an environment seed: the two of a pair, the whole "
        "generation, or none (slot); auto is pair if the strategy samples pairs, slot if "
        "--strategy auto chooses snes or in the schedule async, else generation",
        choices=(AUTO, "pair", "generation", "slot"),
    )
    sigma: float = setting(
        0.0,
        "standard deviation of the perturbations; auto is the strategy's own default",
        low=0.0,
        word="auto",
        live=True,
    )
    sigma_schedule: str = setting(
        "constant",
        "multiply sigma (for pgpe and snes, the learnt sigma) by a factor that depends on the "
        "generation, written as in --learning-rate-schedule",
        form=partial(parse_rate_schedule, "sigma_schedule"),
        metavar="SCHEDULE",
        live=True,
    )
    fitness_cap: str = setting(
        NONE,
        "in the update, a fitness above this number counts as this number: once many individuals "
        "reach it, the search makes the others rarer",
        form=partial(parse_bound, "fitness_cap"),
        metavar="X",
        follows=("reward_shift",),
    )
    schedule: str = setting(
        SYNC,
        "sync closes a generation when all its results are in; async updates as soon as "
        "--population results are in, from any open generation, so no worker waits; async is "
        "not bit-reproducible",
        choices=(SYNC, ASYNC),
    )
    max_lag: int = setting(
        8,
        "with --schedule async: most generations by which a result may be late",
        unit="generations",
        low=1,
        high=100,
    )
    step_limit: str = setting(
        "env",
        "step limit of training episodes: env, a number, "
        "adaptive:START,FRACTION,RATIO[,MAX], or mean:FACTOR",
        group="episodes",
        unit="steps",
        form=parse_step_limit,
        metavar="LIMIT",
        follows=("schedule",),
    )
    reward_shift: float = setting(
        0.0, "number subtracted from each reward before the fitness is summed"
    )
    reward_floor: str = setting(
        NONE,
        "in the fitness, a reward below this number counts as this number",
        form=partial(parse_bound, "reward_floor"),
        metavar="X",
    )
    patience: str = setting(
        NONE,
        "N,D: end a training episode when its fitness gained less than D in N steps",
        form=parse_patience,
        metavar="N,D",
    )
    stall: str = setting(
        NONE,
        "I:X:N: end a training episode when |observation[I]| < X for N steps in a row",
        form=parse_stall,
        metavar="I:X:N",
    )
    reward_clip: bool = setting(
        False,
        "sum the signs of the rewards as fitness, as is usual for Atari games; returns stay "
        "the game's own score",
    )
    life_loss: bool = setting(False, "end a training episode when a life is lost (Atari games)")
    wall_limit: float = setting(
        300.0,
        "end the worker process if an episode lasts longer; that episode is never scored",
        unit="seconds",
        low=0.1,
    )
    eval_every: int = setting(
        10,
        "generations between evaluations of the unperturbed policy; 0 disables",
        group="evaluation",
        unit="generations",
        low=0,
    )
    eval_episodes: int = setting(20, "episodes per evaluation during training", low=1, high=100_000)
    eval_share: float = setting(
        0.0,
        "skip three of four evaluations while fewer individuals of a generation than this share "
        "reach the target; 0 skips none",
        low=0.0,
        high=1.0,
        follows=("eval_every",),
    )
    final_episodes: int = setting(
        100,
        "episodes of the final evaluation, the only figure to quote; 0 disables",
        low=0,
        high=100_000,
        live=True,
        resume=True,
    )
    eval_step_limit: int = setting(
        0,
        "step limit of evaluations; auto is the environment's own limit, or 10000",
        unit="steps",
        low=0,
        word="auto",
    )
    info: tuple[str, ...] = setting(
        (),
        "numbers of the environment's info, by their keys, whose values at the ends of episodes "
        "are averaged and shown (docs/environments.md); auto is is_success, if the environment "
        "reports it",
        read=read_info,
        word=AUTO,
        metavar="NAME,NAME",
    )
    rollback: bool = setting(
        False,
        "restore the best parameters, optimizer and statistics when an evaluation of at least "
        "50 episodes falls below theirs by more than two standard errors",
        follows=("schedule",),
    )
    restart_deadlines: str = setting(
        "none",
        "STEPS=RETURN,...: begin the search and its schedules again if its best evaluation is "
        "below RETURN after STEPS steps, counted from its own beginning; or none",
        form=parse_deadlines,
        metavar="STEPS=RETURN,...",
        follows=("schedule", "rollback"),
    )
    target_reward: str = setting(
        AUTO,
        "end the run if an evaluation reaches this return and fresh episodes confirm it; "
        "auto is the environment's registered threshold",
        form=parse_target,
        metavar="X",
        live=True,
        resume=True,
    )
    confirm_episodes: int = setting(
        100, "fresh episodes whose mean must also reach target_reward", low=1, high=100_000
    )
    target_margin: float = setting(
        0.0,
        "standard errors of its mean by which an evaluation, and its confirmation, must exceed "
        "target_reward; above 0, the more returns differ, the higher their mean must be",
        low=0.0,
        high=10.0,
    )
    target_every: int = setting(
        1,
        "generations between comparisons of an evaluation with the target, a multiple of "
        "eval_every; 1 compares every evaluation",
        unit="generations",
        low=1,
        follows=("eval_every",),
    )
    generations: int = setting(
        0, "stop after this many generations", low=0, word="none", live=True, resume=True
    )
    max_steps: int = setting(
        0,
        "stop at the end of the generation that reaches this many counted training steps",
        unit="steps",
        low=0,
        word="none",
        live=True,
        resume=True,
    )
    max_seconds: float = setting(
        0.0,
        "stop training after this time and drop the open generation; the final episodes follow",
        unit="seconds",
        low=0.0,
        word="none",
        live=True,
        resume=True,
    )
    noise_size: int = setting(
        0,
        "size of the shared noise table; auto grows with the policy",
        group="machinery",
        unit="floats",
        low=0,
        high=2**32 - 1,
        word="auto",
    )
    block: int = setting(
        0,
        "slots per block of work; auto is about half a second of work (changes no result)",
        unit="slots",
        low=0,
        high=4096,
        word="auto",
    )
    worker_memory: int = setting(
        0,
        "replace a worker process after the episode in which its memory exceeds this "
        "(changes no result)",
        unit="MB",
        low=0,
        high=2**24,
        word="none",
    )
    keep_generations: int = setting(
        200,
        "number of generations whose individuals are recorded for es-play RUN --generation "
        "(newest first, older ones thinned); 0 disables (changes no result)",
        low=0,
        high=100_000,
        resume=True,
    )
    snapshot_every: int = setting(
        0,
        "keep the checkpoint of every N-th generation, for es-play RUN --generation (at most "
        "100, older ones thinned); 0 keeps only the newest two (changes no result)",
        unit="generations",
        low=0,
        high=1_000_000,
    )
    audit: float = setting(
        0.0,
        "fraction of slots that the master plays itself, to find broken hosts: the run stops if a "
        "result differs (changes no result)",
        low=0.0,
        high=1.0,
        resume=True,
        follows=("schedule", "allow_nondeterministic"),
    )
    strict: bool = setting(
        False,
        "refuse workers whose fingerprint (a hash of their arithmetic) differs from the run's own",
        resume=True,
    )
    allow_nondeterministic: bool = setting(
        False, "train even if the environment is not reproducible"
    )
    own: tuple[tuple[str, Any], ...] = ()
    given: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    __signature__ = _Signature()

    def __init__(
        self,
        own: Iterable[tuple[str, Any]] = (),
        given: frozenset[str] | None = None,
        **values: Any,
    ) -> None:
        """``own`` and ``given``: as of another RunConfig; of its own settings, those that these
        classes lack are left out. What cannot be combined is refused by ``check``.

        Raises UsageError for an unknown setting and for a value that a setting cannot have.
        """
        self._fill(values, "RunConfig", own)
        if given is not None:  # of a copy, which is given all values
            common = declared(RunConfig)
            changed = {n for n, v in values.items() if n not in common or v != common[n].default}
            self.__dict__["given"] = given | changed

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the settings of this run have no {name!r}")

    def _fill(
        self, values: Mapping[str, Any], source: str, own: Iterable[tuple[str, Any]] = ()
    ) -> None:
        common = declared(RunConfig)
        checked = {
            name: one.checked(values[name], source) if name in values else one.default
            for name, one in common.items()
        }
        mine = self._known_own(checked)
        free = CUSTOM_NAME.fullmatch(checked["strategy"])
        found = {name: one.default for name, one in mine.items()}
        found |= {name: value for name, value in own if name in mine or free}
        for name in (name for name in values if name not in common):
            value = values[name]
            if name in mine:
                value = mine[name].checked(value, source)
            elif not free:
                raise self._unknown(name, value, checked, source)
            else:  # the user's own strategy has it, or refuses it when it is made
                value = without_numpy(value)
                value = tuple(value) if isinstance(value, list) else value
                items = value if isinstance(value, tuple) else [value]
                if not str(name).isidentifier() or not all(map(is_plain, items)):
                    raise UsageError(f"{short(name)} is {short(value)} in {source}: leave it out")
            found[name] = value
        given = frozenset(values)
        self.__dict__.update({**checked, **found, "own": tuple(found.items()), "given": given})

    @staticmethod
    def _known_own(values: Mapping[str, Any]) -> dict[str, Setting]:
        return {
            name: one for part in PARTS for name, one in own_settings(part, values[part]).items()
        }

    @staticmethod
    def _unknown(name: str, value: Any, values: Mapping[str, Any], source: str) -> UsageError:
        """Why these classes have no such setting."""
        for part in PARTS:
            if users := users_of(name, part):
                text = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
                shown = str(text)[:60] if str(text).isprintable() else short(value)
                return UsageError(
                    f"{name} is {shown}, but the {part} {values[part]} does not use it: "
                    f"leave it out, or use the {part} {join(users)}"
                )
        return UsageError(format_unknown_option(name, source))

    @classmethod
    def of(cls, values: Any, source: str) -> Self:
        """Settings from a mapping of plain values that can be combined; ``source`` names their
        origin in errors. Raises UsageError.
        """
        if not isinstance(values, dict):
            raise UsageError(f"the settings of {source} are not a JSON object")
        config = cls.__new__(cls)
        config._fill(values, source)
        config.check()
        return config

    def completed(self, kind: type) -> Self:
        """With all settings of the user's own strategy, checked. Raises UsageError."""
        known, mine = declared(kind.Settings), dict(self.own)  # type: ignore[attr-defined]
        policy = own_settings("policy", self.policy)
        values = {name: one.default for name, one in sorted(known.items())}
        for name, value in mine.items():
            if name in known:
                values[name] = known[name].checked(value, "the settings")
            elif name not in policy:
                hint = format_suggestion(name, known)
                fix = f"; {hint}" if hint else ": leave it out"
                raise UsageError(f"the strategy {self.strategy} has no setting {name}{fix}")
        taken = values.keys() & {*declared(RunConfig), *policy}
        if taken:
            raise UsageError(
                f"the strategy {self.strategy} calls a setting {min(taken)}, which every run has: "
                "give it another name"
            )
        return replace(self, own=tuple((mine | values).items()))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read what ``to_json`` wrote. Raises UsageError for anything else."""
        if len(text) > MAX_JSON:
            raise UsageError(f"the configuration has {len(text)} bytes, more than {MAX_JSON}")
        try:
            data = parse_json(text, MAX_JSON)
        except DecodeError as error:
            raise UsageError(f"the configuration is not JSON: {error}") from None
        return cls.of(data, "the stored configuration")

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    def to_dict(self) -> dict[str, Any]:
        """Plain flat data, the settings of every run first: tuples become lists, ``env_arg`` a
        table.
        """
        names = (*declared(RunConfig), *dict(self.own))
        values = {name: getattr(self, name) for name in names}
        plain = {n: list(v) if isinstance(v, tuple) else v for n, v in values.items()}
        return {**plain, "env_arg": dict(self.env_arg)}

    @property
    def problem(self) -> str:
        """What is trained: the environment's id or the objective."""
        return self.env or self.objective

    @property
    def policy_name(self) -> str:
        """The kind of policy for display; an objective has a vector instead."""
        return "vector" if self.objective else self.policy

    @property
    def has_virtual_norm(self) -> bool:
        return getattr(self, "batch_norm", NONE) == VIRTUAL

    def evaluation_limit(self, step_limit: int | None) -> int:
        """Steps of an evaluation episode: the setting, else the environment's, else 10,000."""
        return self.eval_step_limit or step_limit or DEFAULT_LIMIT

    def training_rules(self, limit: int, by_sign: bool) -> EpisodeRules:
        """The rules of a training episode of at most ``limit`` steps."""
        return EpisodeRules(
            limit=limit,
            reward_shift=self.reward_shift,
            reward_floor=parse_bound("reward_floor", self.reward_floor),
            patience=parse_patience(self.patience),
            stall=parse_stall(self.stall),
            by_sign=by_sign or self.reward_clip,
            life_loss=self.life_loss,
        )

    # --- what cannot be combined

    def refused(self, name: str, why: str) -> UsageError:
        value = getattr(self, name)
        text = ",".join(map(str, value)) if isinstance(value, tuple) else value
        return UsageError(f"{name} is {text}, but {why}")

    def is_changed(self, name: str) -> bool:
        return bool(getattr(self, name) != declared(RunConfig)[name].default)

    def check(self) -> None:
        """Raises UsageError for settings that are valid on their own but cannot be combined."""
        self._check_problem()
        self._check_search()
        self._check_evaluations()
        if ":" not in self.strategy:
            _class_of("strategy", self.strategy).check(self)

    def _check_problem(self) -> None:
        if self.env and self.objective:
            raise UsageError(
                f"env is {self.env} and objective is {self.objective}: a run has one of "
                "them, so leave the other out"
            )
        if not self.problem:
            raise UsageError(
                "env is not given: name the environment to train with --env, for example --env "
                "BipedalWalker-v3"
            )
        if self.env and self.parameters:
            why = "the environment decides how many its policy has: leave it out, or use objective"
            raise self.refused("parameters", f"{why} instead of env")
        if self.env and self.bounds:
            raise self.refused("bounds", "only an objective has variables: leave it out")
        if not self.objective:
            return
        if not CUSTOM_NAME.fullmatch(self.objective) and self.objective != ASKED:
            raise UsageError(f"objective is {self.objective!r}: use module:function, or {ASKED}")
        if self.objective == ASKED and self.audit:
            raise self.refused("audit", "other programs score the vectors: leave it out")
        if not self.parameters:
            fix = "set --parameters to the length of its vector"
            raise self.refused("objective", f"parameters is 0: {fix}")
        for name in filter(self.is_changed, OF_ENVIRONMENTS):
            why = f"{name} is set, and an objective has no environment and no policy"
            raise self.refused("objective", f"{why}: leave {name} out")
        if getattr(self, "behaviour", AUTO) != AUTO:
            fix = "leave it out, and return (number, behaviour)"
            raise self.refused("behaviour", f"an objective returns its own: {fix}")
        if self.backend not in (AUTO, "lean", "stock"):
            why = "an objective runs only on lean (in batches) and stock: leave backend at auto"
            raise self.refused("backend", why)
        if self.bounds and len(parse_bounds("bounds", self.bounds)) not in (1, self.parameters):
            why = f"there are {self.parameters} parameters: use one pair, or one for each"
            raise self.refused("bounds", why)

    def _check_search(self) -> None:
        if self.population_max and self.population_max < self.population:
            raise UsageError(
                f"population_max is {self.population_max}, below the population of "
                f"{self.population}: use {self.population} or more, or auto"
            )
        for name in ("population", "population_max"):
            most, value = int(declared(RunConfig)[name].high or 0), getattr(self, name)
            if value * self.scale > most:
                fix = f"use a scale of at most {most // value}"
                raise UsageError(
                    f"scale is {self.scale:g}, but {name} {value} can grow to {most}: {fix}"
                )
        if self.population_max and not self.min_steps:
            why = "only min_steps lets the population grow: set min_steps as well"
            raise self.refused("population_max", why)
        if parse_rate_schedule("sigma_schedule", self.sigma_schedule).lowest <= 0:
            why = "a run learns nothing without perturbations: use factors above 0"
            raise self.refused("sigma_schedule", why)
        if self.audit and self.allow_nondeterministic:
            why = "allow_nondeterministic lets two correct results of a slot differ"
            raise self.refused("audit", f"{why}: leave one of the two settings out")
        if self.schedule == SYNC:
            if self.is_changed("max_lag"):
                fix = "leave max_lag out, or use the schedule async"
                raise self.refused("max_lag", f"schedule is sync, which does not use it: {fix}")
            return
        for name in filter(self.is_changed, OF_GENERATIONS):
            why = f"{name} needs generations that close on their own slots"
            raise self.refused("schedule", f"{why}: leave {name} out, or use the schedule sync")
        if parse_step_limit(self.step_limit).kind not in ("env", "fixed"):
            why = f"a step_limit of {self.step_limit} is adapted to whole generations"
            raise self.refused("schedule", f"{why}: use env or a number, or the schedule sync")

    def _check_evaluations(self) -> None:
        if self.rollback and (self.eval_every == 0 or self.eval_episodes < ROLLBACK_EPISODES):
            raise UsageError(
                f"rollback needs evaluations of at least {ROLLBACK_EPISODES} episodes, but "
                f"eval_every is {self.eval_every} and eval_episodes is {self.eval_episodes}: set "
                f"--eval-episodes {ROLLBACK_EPISODES} or more, or leave rollback out"
            )
        if self.restart_deadlines != NONE and self.rollback:
            why = "rollback replaces searches by its own rule"
            raise self.refused(
                "restart_deadlines", f"{why}: leave restart_deadlines or rollback out"
            )
        if self.eval_every == 0:
            if self.restart_deadlines != NONE:
                why = "eval_every is 0, and deadlines compare evaluations: set eval_every to 1 or"
                raise self.refused("restart_deadlines", f"{why} more, or restart_deadlines to none")
            if self.target_reward not in (AUTO, NONE):
                why = "eval_every is 0 and only evaluations are compared with it: set eval_every to"
                raise self.refused("target_reward", f"{why} 1 or more, or target_reward to none")
        cap, target = parse_bound("fitness_cap", self.fitness_cap), parse_target(self.target_reward)
        if cap is not None and isinstance(target, float) and target > cap and not self.reward_shift:
            why = f"a search gains nothing above its fitness_cap of {self.fitness_cap}"
            raise self.refused("target_reward", f"{why}: use a larger fitness_cap, or none")
        if self.target_every > 1 and self.target_every % max(1, self.eval_every):
            why = f"only every {self.eval_every}th generation has an evaluation to compare"
            raise self.refused("target_every", f"{why}: use a multiple of eval_every")

    def useless(self) -> dict[str, str]:
        """Settings that another one leaves without effect, each with the error for a new run that
        sets it.
        """
        found: dict[str, tuple[str, str]] = {}
        if not self.obs_norm or self.has_virtual_norm:
            why = "with batch_norm virtual" if self.obs_norm else "without obs_norm"
            fix = "leave batch_norm out" if self.obs_norm else "leave --no-obs-norm out"
            for name in ("image_norm", "obs_clip", "obs_sample"):
                found[name] = f"{why} observations are used unchanged", fix
        if not self.eval_every:
            why = "eval_every is 0, so nothing is evaluated before the end"
            found["eval_episodes"] = why, "set eval_every to 1 or more"
        if self.target_reward == NONE:
            why = "target_reward is none, so nothing is compared with it"
            useless = ("confirm_episodes", "target_margin", "eval_share")
            found |= dict.fromkeys(useless, (why, "name a target"))
        return {
            name: f"{name} is {getattr(self, name):g}, but {why}: leave {name} out, or {fix}"
            for name, (why, fix) in found.items()
        }


#: What ``--resume`` may change: how long a run continues and how its end is measured, not its
#: training.
RESUMABLE = tuple(name for name, one in declared(RunConfig).items() if one.resume)


@cache
def every_setting() -> dict[str, Setting]:
    """All settings of es-queue, those of policies and strategies last. Imports their classes."""
    known = dict(declared(RunConfig))
    for part, kinds in PARTS.items():
        own = {name: one for kind in kinds for name, one in own_settings(part, kind).items()}
        known |= dict(sorted(own.items()))
    return known


@cache
def users_of(name: str, part: str = "") -> tuple[str, ...]:
    """The strategies or policies that have a setting of their own."""
    kinds = {"strategy": STRATEGIES, "policy": POLICIES}
    return tuple(
        kind
        for one in ([part] if part else kinds)
        for kind in kinds[one]
        if name in own_settings(one, kind)
    )


def changeable() -> tuple[str, ...]:
    """What ``--set`` may change in a running run, from a generation on."""
    return tuple(name for name, one in every_setting().items() if one.live)


def format_unknown_option(name: str, source: str) -> str:
    name = str(name).replace("-", "_")
    known = SYNONYMS.get(name, "")
    hint = f"use {known}" if known else format_suggestion(name, every_setting())
    return (
        f"{source} has the unknown option {short(name)}; "
        f"{hint or 'es-master --help-all lists all options'}"
    )


def check_changes(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Check changes for a running run; text with a number counts as the number. Raises
    UsageError.
    """
    known, can = every_setting(), changeable()
    for name in values:
        if name not in known:
            fix = format_suggestion(str(name)[:60], can) or f"use {', '.join(can)}"
            raise UsageError(f"{str(name)[:60]!r} in {source} is no setting: {fix}")
        if name not in can:
            raise UsageError(
                f"{name} cannot change during a run, but {source} sets it: set only "
                f"{', '.join(can)}, or begin a new run with {known[name].flag} VALUE and "
                "--warm-start RUN"
            )
    return {name: known[name].from_text(value, source) for name, value in values.items()}


def check_resume_changes(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Check changes for a resumed run. Raises UsageError."""
    if fixed := [str(name) for name in values if name not in RESUMABLE]:
        raise UsageError(
            f"{source} has {', '.join(fixed)}, but a resumed run can change only "
            f"{', '.join(RESUMABLE)}: start a new run for the rest"
        )
    known = declared(RunConfig)
    return {name: known[name].checked(value, source) for name, value in values.items()}
