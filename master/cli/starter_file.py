"""Translates experiment files of evolution-strategies-starter (Salimans et al. 2017) and of Uber's
deep-neuroevolution, key by key.

Such a file is JSON with ``config``, ``env_id``, ``exp_prefix``, ``optimizer`` and ``policy``.
Uber's may also have ``novelty_search``, or ``population_size`` in place of ``optimizer``. Each key
becomes a setting, or is reported as having no counterpart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from es_queue.config.run_config import flag_name, option_fields
from es_queue.config.validation import checked_value
from es_queue.errors import DecodeError, UsageError
from es_queue.security import strict_json
from es_queue.security.private_directory import regular
from es_queue.security.sanitize import sanitize

LARGEST_FILE = 256 * 1024
#: Dots in the name of the deepest key, optimizer.args.stepsize.
DEEPEST = 2
PARTS = ("config", "env_id", "policy")


@dataclass
class StarterTranslation:
    """The translation of a file's keys. values: checked settings; lines: one sentence per key."""

    source: str
    values: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def translate(self, key: str, given: Any, settings: dict[str, Any], remark: str = "") -> None:
        """Raises UsageError for an impossible value."""
        for name, value in settings.items():
            self.values[name] = checked_value(
                option_fields()[name], value, f"{self.source} ({key})"
            )
        flags = " ".join(map(format_flag, settings.items()))
        self.lines.append(f"{key} {format_value(given)} -> {flags}{remark and f' ({remark})'}")

    def skip(self, key: str, given: Any, why: str) -> None:
        self.lines.append(f"{key} {format_value(given)} -> no counterpart: {why}")

    def make_error(self, key: str, given: Any, fix: str) -> UsageError:
        return UsageError(f"{self.source} has {key} {format_value(given)}: {fix}")


def format_value(value: Any) -> str:
    return sanitize(str(value), 80)


def format_flag(setting: tuple[str, Any]) -> str:
    name, value = flag_name(setting[0]), setting[1]
    if isinstance(value, dict):
        return " ".join(f"--{name} {key}={argument}" for key, argument in value.items())
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name} {','.join(map(str, value)) if isinstance(value, list) else value}"


def read_starter_file(path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Settings, and one line per key. Raises UsageError."""
    data, translation = _read_json(path), StarterTranslation(str(path))
    strategy = next((name for key, name in STRATEGY_KEYS.items() if key in data), "openai_es")
    rules = {**RULES, **STRATEGY_RULES[strategy], **_network_rules(data)}
    for key, given in _flatten(data):
        if key not in rules:
            raise UsageError(
                f"{path} has the key {key!r}, which neither evolution-strategies-starter nor "
                f"deep-neuroevolution knows in such a file: they know {', '.join(rules)}"
            )
        rules[key](translation, key, given)
    source, remark = ALGORITHMS[strategy]
    translation.translate("algorithm", source, {"strategy": strategy}, remark)
    return translation.values, tuple(translation.lines)


def read_given(path: Path) -> bytes:
    """A file of settings. Raises UsageError if it is not a file, or is larger than LARGEST_FILE."""
    try:
        with open(path, "rb", opener=regular) as file:
            data = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise UsageError(
            f"the configuration file {path} cannot be read: {error.strerror}"
        ) from None
    if len(data) > LARGEST_FILE:
        raise UsageError(
            f"the configuration file {path} has more than {LARGEST_FILE} bytes: give one that "
            f"contains only settings"
        )
    return data


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = strict_json.loads(read_given(path), LARGEST_FILE)
    except DecodeError as error:
        raise UsageError(f"{path} is not JSON: {error}") from None
    names = dict.fromkeys(data if isinstance(data, dict) else ())
    parts = PARTS if "population_size" in names else (*PARTS, "optimizer")
    missing = [name for name in parts if name not in names]
    if missing:
        raise UsageError(
            f"{path} is not an experiment file of evolution-strategies-starter, because it has no "
            f"{' and no '.join(missing)}; es-queue's own settings belong in a TOML file"
        )
    return dict(data)


def _network_rules(data: dict[str, Any]) -> dict[str, Rule]:
    """Other rules for a file whose policy sees the images of Atari games."""
    policy = data["policy"]
    kind = policy.get("type") if isinstance(policy, dict) else None
    return ATARI_RULES if kind in ATARI_POLICIES else {}


def _flatten(data: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """(config.l2coeff, value) and so on."""
    for name, value in data.items():
        key = f"{before}{name}"
        if isinstance(value, dict) and key.count(".") < DEEPEST:
            yield from _flatten(value, f"{key}.")
        else:
            yield key, value


# --- what each key becomes

Rule = Callable[[StarterTranslation, str, Any], None]


def copy_rule(name: str, remark: str = "") -> Rule:
    return lambda translation, key, given: translation.translate(key, given, {name: given}, remark)


def skip_rule(why: str) -> Rule:
    return lambda translation, key, given: translation.skip(key, given, why)


def choice_rule(name: str, names: dict[str, str]) -> Rule:
    def rule(translation: StarterTranslation, key: str, given: Any) -> None:
        if not isinstance(given, str) or given not in names:
            raise translation.make_error(
                key, given, f"use {' or '.join(names)}, other values have no counterpart"
            )
        translation.translate(key, given, {name: names[given]})

    return rule


def validate_fraction(translation: StarterTranslation, key: str, given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given <= 1:
        raise translation.make_error(key, given, "use a probability from 0 to 1")
    return float(given)


def translate_statistics(translation: StarterTranslation, key: str, given: Any) -> None:
    share = validate_fraction(translation, key, given)
    if share:
        translation.translate(
            key,
            given,
            {"obs_norm": True, "obs_sample": share},
            "the run's seed selects the slots, not a random draw of each worker",
        )
    else:
        translation.translate(key, given, {"obs_norm": False})


def translate_evaluations(translation: StarterTranslation, key: str, given: Any) -> None:
    share = validate_fraction(translation, key, given)
    if not share:
        translation.translate(key, given, {"eval_every": 0})
        return
    translation.translate(
        key,
        given,
        {"eval_every": 1, "eval_episodes": max(1, round(share * 1000))},
        "a fixed number per generation, the starter's probability in thousandths, instead "
        "of a random choice per task",
    )


def translate_episodes(translation: StarterTranslation, key: str, given: Any) -> None:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise translation.make_error(key, given, "use a whole number of episodes from 1")
    even = max(2, given + given % 2)
    translation.translate(
        key,
        given,
        {"population": even},
        "individuals, two per pair; the starter's minimum is the batch size here, so long "
        "episodes are not under-sampled",
    )


def translate_cutoff(translation: StarterTranslation, key: str, given: Any) -> None:
    form = "env" if given == "env_default" else str(given)
    translation.translate(
        key,
        given,
        {"step_limit": form},
        "the limit has no upper bound unless you give one" if form.startswith("adaptive") else "",
    )


def translate_bins(translation: StarterTranslation, key: str, given: Any) -> None:
    if given == "continuous:":
        translation.translate(
            key,
            given,
            {"action_bins": "none"},
            "actions are clipped to their bounds, which the starter leaves to the environment",
        )
    else:
        translation.translate(key, given, {"action_bins": given})


def translate_atari_id(translation: StarterTranslation, key: str, given: Any) -> None:
    translation.translate(
        key,
        given,
        {"env": given, "env_arg": {"frameskip": 4}},
        "an action lasts four frames, as in deep-neuroevolution's wrappers",
    )


def fixed_rule(value: Any, why: str) -> Rule:
    """A key with one value that has a counterpart, which needs no setting."""

    def rule(translation: StarterTranslation, key: str, given: Any) -> None:
        if given != value:
            raise translation.make_error(key, given, f"use {value}, because {why}")
        translation.lines.append(f"{key} {format_value(given)} -> no setting needed: {why}")

    return rule


def only_rule(word: str, fix: str) -> Rule:
    """The one value that has a counterpart: the policy ``mlp``."""

    def rule(translation: StarterTranslation, key: str, given: Any) -> None:
        if given != word:
            raise translation.make_error(key, given, fix)
        translation.translate(key, given, {"policy": "mlp"})

    return rule


FIXED_ADAM = "Adam's beta1, beta2 and epsilon are 0.9, 0.999 and 1e-8, the starter's own"
RULES: dict[str, Rule] = {
    "config.l2coeff": copy_rule(
        "l2", "added to the gradient, so it passes through Adam, as in the starter"
    ),
    "config.noise_stdev": copy_rule("sigma"),
    "config.episodes_per_batch": translate_episodes,
    "config.timesteps_per_batch": copy_rule(
        "min_steps", "the batch grows to at most 8 populations, unless --population-max is set"
    ),
    "config.calc_obstat_prob": translate_statistics,
    "config.eval_prob": translate_evaluations,
    "config.snapshot_freq": copy_rule("snapshot_every", "at most 100 of them stay"),
    "config.return_proc_mode": choice_rule(
        "shaping",
        {
            "centered_rank": "centered-rank",
            "sign": "sign",
            "centered_sign_rank": "centered-sign-rank",
        },
    ),
    "config.episode_cutoff_mode": translate_cutoff,
    "env_id": copy_rule(
        "env", "an old version is replaced by the current one, which es-master reports"
    ),
    "exp_prefix": skip_rule("a run's id is made from environment and time; --run names it"),
    "optimizer.type": choice_rule("optimizer", {"adam": "adam", "sgd": "sgd"}),
    "optimizer.args.stepsize": copy_rule("learning_rate"),
    "optimizer.args.momentum": copy_rule("momentum"),
    "optimizer.args.beta1": skip_rule(FIXED_ADAM),
    "optimizer.args.beta2": skip_rule(FIXED_ADAM),
    "optimizer.args.epsilon": skip_rule(FIXED_ADAM),
    "policy.type": only_rule(
        "MujocoPolicy",
        "only MujocoPolicy, ESAtariPolicy and GAAtariPolicy have counterparts; --policy has other "
        "networks (docs/policies.md)",
    ),
    "policy.args.ac_bins": translate_bins,
    "policy.args.ac_noise_std": copy_rule("action_noise", "only in training, as in the starter"),
    "policy.args.connection_type": only_rule("ff", "use ff, the only one that the starter builds"),
    "policy.args.hidden_dims": copy_rule("hidden"),
    "policy.args.nonlin_type": choice_rule(
        "activation", {"tanh": "tanh", "relu": "relu", "lrelu": "lrelu", "elu": "elu"}
    ),
    "policy.init_from": skip_rule(
        "--warm-start takes an es-queue checkpoint; the starter's .h5 contains pickle and is "
        "not read"
    ),
}

#: A key that only files of another algorithm than evolution strategies have.
STRATEGY_KEYS = {"novelty_search": "novelty", "population_size": "ga"}
#: Where each strategy's files come from, and a remark.
ALGORITHMS = {
    "openai_es": (
        "evolution-strategies-starter",
        "its gradient has no factor 1/sigma, as with --gradient-form starter, the default",
    ),
    "novelty": ("deep-neuroevolution", ""),
    "ga": ("deep-neuroevolution", "for its random search, use --strategy random_search"),
}
_RANKS = skip_rule("novelty and reward are compared by centred ranks, as in deep-neuroevolution")
_UNUSED = skip_rule("deep-neuroevolution's genetic algorithm does not use it either")
STRATEGY_RULES: dict[str, dict[str, Rule]] = {
    "openai_es": {},
    "novelty": {
        "config.return_proc_mode": _RANKS,
        "algo_type": choice_rule("novelty", {"ns": "ns", "nsr": "nsr"}),
        "novelty_search.k": copy_rule("neighbours"),
        "novelty_search.population_size": lambda translation, key, given: translation.translate(
            key, given, {"members": given, "member_init": "own"}, "each member is drawn on its own"
        ),
        "novelty_search.num_rollouts": copy_rule("behaviour_episodes"),
        "novelty_search.selection_method": fixed_rule(
            "novelty_prob", "the more novel members are trained more often"
        ),
    },
    "ga": {
        "config.l2coeff": _UNUSED,
        "config.return_proc_mode": _UNUSED,
        "config.episodes_per_batch": copy_rule("population", "one episode per individual"),
        "population_size": copy_rule("truncation", "the parents of a generation"),
        "num_elites": fixed_rule(1, "there is one elite, which plays again in each generation"),
    },
}
#: Policies for Atari games.
ATARI_POLICIES: dict[str, dict[str, Any]] = {
    "ESAtariPolicy": {"policy": "uber", "batch_norm": "virtual"},
    "GAAtariPolicy": {"policy": "uber"},
}
ATARI_RULES: dict[str, Rule] = {
    "env_id": translate_atari_id,
    "policy.type": lambda file, key, given: file.translate(key, given, ATARI_POLICIES[given]),
    "policy.args.nonlin_type": fixed_rule("relu", "the network uber has this activation"),
    "policy.args.ac_init_std": skip_rule("the last layer begins near zero"),
}
