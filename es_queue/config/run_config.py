"""RunConfig: the settings that can change a run's numbers: those of every run, and those that the
classes of its problem, policy, schedule and strategy declare.

From outside, all of them are flat names and values: flags, TOML files, recipes, the JSON stored
with a run, and Python's keywords. There is no connection, no path and no secret among them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from inspect import Parameter, Signature
from typing import Any, Literal, Self

from es_queue.backends import BACKENDS, format_backends
from es_queue.config.schedules import ASYNC, FORMS, SYNC, Async, Sync, parse_rate_schedule
from es_queue.config.settings import (
    AUTO,
    CUSTOM_NAME,
    NONE,
    FoundClasses,
    Setting,
    declared,
    format_flag,
    is_plain,
    join,
    setting,
    short,
    without_numpy,
    written_in,
)
from es_queue.environments.episode_rules import (
    EnvironmentSettings,
    ObjectiveSettings,
    parse_bound,
    parse_bounds,
)
from es_queue.errors import DecodeError, EsQueueError, UsageError
from es_queue.files import parse_json
from es_queue.text import format_suggestion, parse_finite

VIRTUAL = "virtual"
MAX_JSON = 2**20

#: As an objective: other programs score the vectors (``workers.ask_tell``).
ASKED = "ask"
#: The classes that ``--strategy`` and ``--policy`` name.
STRATEGIES = FoundClasses("es_queue.strategies", "name")
POLICIES = FoundClasses("es_queue.policies", "kinds")
#: What has settings of its own, by the setting that names it; a problem has none, see ``_kind``.
PARTS: dict[str, Mapping[str, Any]] = {
    "problem": {"environment": EnvironmentSettings, "objective": ObjectiveSettings},
    "schedule": {SYNC: Sync, ASYNC: Async},
    "policy": POLICIES,
    "strategy": STRATEGIES,
}
#: The settings of those problems and schedules; a run has them all as attributes.
FIXED = {
    name: one
    for part in ("problem", "schedule")
    for kind in PARTS[part].values()
    for name, one in declared(kind).items()
}
#: Settings of every run that a model does not have.
NOT_OF_MODELS = (
    *("env", "objective", "policy", "strategy", "schedule"),
    *("scale", "fitness_cap", "snapshot_every"),
)
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


@cache
def own_settings(part: str, name: str) -> dict[str, Setting]:
    """What a problem, schedule, policy or strategy adds to the settings of every run, by name. The
    user's own class is not imported to read a file: here it has the settings of its base.
    """
    kind = _class_of(part, name)
    return dict(sorted(declared(getattr(kind, "Settings", kind)).items()))


def _class_of(part: str, name: str) -> Any:
    if part == "model":
        return import_module("es_queue.strategies.model_es").ModelES
    if name == AUTO:
        return import_module("es_queue.strategies.auto").Auto
    if ":" in name:
        base = import_module(f"es_queue.{'policies' if part == 'policy' else 'strategies'}.base")
        return base.Policy if part == "policy" else base.Strategy
    return PARTS[part][name]


def _kind(part: str, values: Mapping[str, Any]) -> str:
    if part == "problem":
        return "objective" if values["objective"] else "environment"
    return str(values[part])


def parse_target(text: str) -> float | Literal["auto", "none"]:
    """A finite return; ``auto`` (the environment's threshold) and ``none`` stay."""
    if text == "auto":
        return "auto"
    return "none" if text == "none" else parse_finite(text)


@dataclass(frozen=True, init=False)
class RunConfig:
    """The settings of a run. Runs with equal settings end with equal parameters, to the bit.

    own: (name, value) of the settings of its problem, schedule, policy and strategy, which are also
    keywords and attributes
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
    model: str = setting(
        "",
        "your own class that loads a torch module of any size and scores it, instead of an "
        "environment; workers hold its weights (docs/large_models.md)",
        metavar="MODULE:CLASS",
    )
    seed: int = setting(
        -1,
        "seed of all randomness of the run; a random one is printed and stored",
        low=-1,
        high=2**63 - 1,
        word="random",
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
    scale: float = setting(
        1.0,
        "enlarge the search for about this many times the workers: population, rates and "
        "schedules follow (docs/scale.md); may change during a run",
        low=1.0,
        high=1024.0,
        live=True,
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
        form=parse_rate_schedule,
        forms=FORMS,
        metavar="SCHEDULE",
        live=True,
    )
    fitness_cap: str = setting(
        NONE,
        "in the update, a fitness above this number counts as this number: once many individuals "
        "reach it, the search makes the others rarer",
        form=parse_bound,
        forms="a number or none",
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
    wall_limit: float = setting(
        300.0,
        "end the worker process if an episode lasts longer; that episode is never scored",
        group="episodes",
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
    target_reward: str = setting(
        AUTO,
        "end the run if an evaluation reaches this return and fresh episodes confirm it; "
        "auto is the environment's registered threshold",
        form=parse_target,
        forms="a number, auto or none",
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
        parts = {part: _kind(part, checked) for part in PARTS}
        parts = {"model": ""} if checked["model"] else parts
        mine: dict[str, Setting] = {}
        for part, kind in parts.items():
            mine |= own_settings(part, kind)
        free = CUSTOM_NAME.fullmatch(checked["strategy"])
        unused = {name: one.default for name, one in FIXED.items()}
        # An objective and a model observe nothing.
        unused["obs_norm"] = not (checked["objective"] or checked["model"])
        found = {name: one.default for name, one in mine.items()}
        found |= {n: v for n, v in own if n in mine or (free and n not in FIXED)}
        for name, value in values.items():
            if name in mine:
                found[name] = mine[name].checked(value, source)
            elif name in FIXED and FIXED[name].checked(value, source) == unused[name]:
                continue  # it says nothing
            elif name not in common:
                if not free or name in FIXED:
                    raise self._unknown(name, value, checked, source)
                # the user's own strategy has it, or refuses it when it is made
                value = without_numpy(value)
                value = tuple(value) if isinstance(value, list) else value
                items = value if isinstance(value, tuple) else [value]
                if not str(name).isidentifier() or not all(map(is_plain, items)):
                    raise UsageError(f"{short(name)} is {short(value)} in {source}: leave it out")
                found[name] = value
        fields = {"own": tuple(found.items()), "given": frozenset(values)}
        self.__dict__.update(unused | checked | found | fields)

    @staticmethod
    def _unknown(name: str, value: Any, values: Mapping[str, Any], source: str) -> UsageError:
        """Why these classes have no such setting."""
        if values["model"] and name in every_setting():
            return UsageError(f"{name} is set, but a model does not use it: leave {name} out")
        if name in own_settings("model", "") and not users_of(name):
            return UsageError(f"{name} is set, but only a model uses it: leave {name} out")
        for part in PARTS:
            if users := users_of(name, part):
                text = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
                shown = str(text)[:60] if str(text).isprintable() else short(value)
                what = "an" if part == "problem" else f"the {part}"
                return UsageError(
                    f"{name} is {shown}, but {what} {_kind(part, values)} does not use it: "
                    f"leave it out, or use {what} {join(users)}"
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
        others = FIXED.keys() | own_settings("policy", self.policy).keys()
        values = {name: one.default for name, one in sorted(known.items())}
        for name, value in mine.items():
            if name in known:
                values[name] = known[name].checked(value, "the settings")
            elif name not in others:
                hint = format_suggestion(name, known)
                fix = f"; {hint}" if hint else ": leave it out"
                raise UsageError(f"the strategy {self.strategy} has no setting {name}{fix}")
        taken = values.keys() & (others | declared(RunConfig).keys())
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
        values = {name: getattr(self, name) for name in (*declared(RunConfig), *dict(self.own))}
        plain = {n: list(v) if isinstance(v, tuple) else v for n, v in values.items()}
        return plain | ({"env_arg": dict(self.env_arg)} if self.env_arg else {})

    @property
    def problem(self) -> str:
        """What is trained: the environment's id, the objective or the model."""
        return self.env or self.objective or self.model

    @property
    def strategy_name(self) -> str:
        """The algorithm for display; a model has its own."""
        return "model_es" if self.model else self.strategy

    @property
    def policy_name(self) -> str:
        """The kind of policy for display; an objective has a vector instead."""
        return "vector" if self.objective else "model" if self.model else self.policy

    @property
    def has_virtual_norm(self) -> bool:
        return getattr(self, "batch_norm", NONE) == VIRTUAL

    # --- what cannot be combined

    def refused(self, name: str, why: str) -> UsageError:
        value = getattr(self, name)
        text = ",".join(map(str, value)) if isinstance(value, tuple) else value
        return UsageError(f"{name} is {text}, but {why}")

    def check(self) -> None:
        """Raises UsageError for settings that are valid on their own but cannot be combined."""
        self._check_problem()
        for name in ("population", "population_max"):
            most, value = int((declared(RunConfig) | FIXED)[name].high or 0), getattr(self, name)
            if value * self.scale > most:
                fix = f"use a scale of at most {most // value}"
                raise UsageError(
                    f"scale is {self.scale:g}, but {name} {value} can grow to {most}: {fix}"
                )
        if parse_rate_schedule(self.sigma_schedule).lowest <= 0:
            why = "a run learns nothing without perturbations: use factors above 0"
            raise self.refused("sigma_schedule", why)
        self._check_evaluations()
        PARTS["schedule"][self.schedule].check(self)
        if self.model or ":" not in self.strategy:
            _class_of("model" if self.model else "strategy", self.strategy).check(self)

    def _check_model(self) -> None:
        if not CUSTOM_NAME.fullmatch(self.model):
            raise UsageError(f"model is {self.model!r}: use module:Class")
        for name in NOT_OF_MODELS:
            if getattr(self, name) != declared(RunConfig)[name].default:
                why = f"{name} is set, which a model does not use"
                raise self.refused("model", f"{why}: leave {name} out")
        if not self.eval_every:
            why = "a model's snapshots are written with its evaluations: set it to 1 or more"
            raise self.refused("eval_every", why)

    def _check_problem(self) -> None:
        if self.model:
            self._check_model()
            return
        if self.env and self.objective:
            raise UsageError(
                f"env is {self.env} and objective is {self.objective}: a run has one of "
                "them, so leave the other out"
            )
        if not self.problem:
            raise UsageError(
                "env is not given: name the environment to train, such as BipedalWalker-v3"
            )
        if not self.objective:
            return
        if not CUSTOM_NAME.fullmatch(self.objective) and self.objective != ASKED:
            raise UsageError(f"objective is {self.objective!r}: use module:function, or {ASKED}")
        if self.objective == ASKED and self.audit:
            raise self.refused("audit", "other programs score the vectors: leave it out")
        if not self.parameters:
            fix = "set parameters to the length of its vector"
            raise self.refused("objective", f"parameters is 0: {fix}")
        if self.policy != declared(RunConfig)["policy"].default:
            raise self.refused("policy", "an objective has a vector instead: leave policy out")
        if getattr(self, "behaviour", AUTO) != AUTO:
            fix = "leave it out, and return (number, behaviour)"
            raise self.refused("behaviour", f"an objective returns its own: {fix}")
        if self.backend not in (AUTO, "lean", "stock"):
            why = "an objective runs only on lean (in batches) and stock: leave backend at auto"
            raise self.refused("backend", why)
        if self.bounds and len(parse_bounds(self.bounds)) not in (1, self.parameters):
            why = f"there are {self.parameters} parameters: use one pair, or one for each"
            raise self.refused("bounds", why)

    def _check_evaluations(self) -> None:
        if self.eval_every == 0 and self.target_reward not in (AUTO, NONE):
            why = "eval_every is 0 and only evaluations are compared with it: set eval_every to 1"
            raise self.refused("target_reward", f"{why} or more, or target_reward to none")
        cap, target = parse_bound(self.fitness_cap), parse_target(self.target_reward)
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
        found: dict[str, str] = {}

        def add(names: tuple[str, ...], why: str, fix: str) -> None:
            for name in names:
                value = getattr(self, name)
                shown = str(value) if isinstance(value, bool) else f"{value:g}"
                found[name] = f"{name} is {shown}, but {why}: leave {name} out, or {fix}"

        normalised, unchanged = (
            ("image_norm", "obs_clip", "obs_sample"),
            "observations are used unchanged",
        )
        if not self.obs_norm:
            add(normalised, f"without obs_norm {unchanged}", "leave obs_norm on")
        elif self.has_virtual_norm:
            add(normalised, f"with batch_norm virtual {unchanged}", "leave batch_norm out")
        if not self.eval_every:
            why = "eval_every is 0, so nothing is evaluated before the end"
            add(("eval_episodes",), why, "set eval_every to 1 or more")
        if self.target_reward == NONE:
            why = "target_reward is none, so nothing is compared with it"
            add(("confirm_episodes", "target_margin", "eval_share"), why, "name a target")
        return found


# What help() and editors show.
RunConfig.__signature__ = Signature(  # type: ignore[attr-defined]
    [
        *(
            Parameter(name, Parameter.KEYWORD_ONLY, default=one.default)
            for name, one in (declared(RunConfig) | FIXED).items()
        ),
        Parameter("own", Parameter.VAR_KEYWORD),
    ]
)


# --- names in sentences

#: A setting's name in a sentence. One of a single word is also a word of English, so it counts only
#: as a subject, and if the sentence says to set it or to leave it out.
NAMED = re.compile(
    r"(?:^|(?<=, but )|(?<= and ))[a-z]\w*(?= is )"
    r"|(?<=leave )\w+(?= out)|(?<=set )\w+(?= to)"
    r"|(?<![\w./:'=-])[a-z0-9]+_\w+(?![\w./'=(]|:\w)"
)
#: A flag in a sentence; those of a command, such as es-status RUN --watch, stay.
FLAG = re.compile(r"\bes-[a-z]+ [^;,()]*|(?<![\w-])--(?P<name>[a-z][a-z0-9-]*)")


@contextmanager
def naming_settings(as_flags: bool, others: Iterable[str] = ()) -> Iterator[None]:
    """Errors from here name settings as a command line does (--max-steps), or as Python does
    (max_steps). others: names of what is no setting
    """
    try:
        yield
    except EsQueueError as error:
        known = {*every_setting(), *others}

        def renamed(found: re.Match[str]) -> str:
            name = found[0] if as_flags else (found["name"] or "").replace("-", "_")
            return found[0] if name not in known else format_flag(name) if as_flags else name

        error.args = ((NAMED if as_flags else FLAG).sub(renamed, str(error)),)
        raise


# --- all settings


@cache
def every_setting() -> dict[str, Setting]:
    """All settings of es-queue, those of policies and strategies last. Imports their classes."""
    known = declared(RunConfig) | FIXED
    for part in ("policy", "strategy"):
        own = {name: one for kind in PARTS[part] for name, one in own_settings(part, kind).items()}
        known |= dict(sorted(own.items()))
    return known | {n: one for n, one in own_settings("model", "").items() if n not in known}


@cache
def users_of(name: str, *parts: str) -> tuple[str, ...]:
    """The strategies or policies that have a setting of their own; parts: other of PARTS."""
    return tuple(
        kind
        for part in parts or ("strategy", "policy")
        for kind in PARTS[part]
        if name in own_settings(part, kind)
    )


def resumable() -> tuple[str, ...]:
    """What ``--resume`` may change: how long a run continues and how its end is measured, not its
    training.
    """
    return tuple(name for name, one in every_setting().items() if one.resume)


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
    known, can = every_setting(), resumable()
    if fixed := [written_in(source, str(name)) for name in values if name not in can]:
        allowed = ", ".join(written_in(source, name) for name in can)
        raise UsageError(
            f"{source} has {', '.join(fixed)}, but a resumed run can change only {allowed}: start "
            "a new run for the rest"
        )
    return {name: known[name].checked(value, source) for name, value in values.items()}
