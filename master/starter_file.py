"""The experiment files of evolution-strategies-starter (Salimans et al. 2017), told in our settings key by key.

Such a file is JSON with ``config``, ``env_id``, ``exp_prefix``, ``optimizer`` and ``policy``. Each of its keys becomes a
setting, or is said to have no counterpart and why; nothing of it is passed over in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from es_queue import strict_json
from es_queue.config import option_fields
from es_queue.errors import DecodeError, UsageError
from es_queue.private_folder import regular
from es_queue.validation import checked_value
from es_queue.wording import printable

LARGEST_FILE = 256 * 1024
#: Dots in the name of the deepest key, optimizer.args.stepsize.
DEEPEST = 2
PARTS = ("config", "env_id", "optimizer", "policy")


@dataclass
class Told:
    """What a file's keys became. values: checked settings by name; lines: a sentence a key, in the file's order."""

    source: str
    values: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def became(self, key: str, given: Any, settings: dict[str, Any], remark: str = "") -> None:
        """Raises UsageError where a value cannot be."""
        for name, value in settings.items():
            self.values[name] = checked_value(option_fields()[name], value, f"{self.source} ({key})")
        flags = " ".join(map(as_flag, settings.items()))
        self.lines.append(f"{key} {shown(given)} -> {flags}{remark and f' ({remark})'}")

    def nothing(self, key: str, given: Any, why: str) -> None:
        self.lines.append(f"{key} {shown(given)} -> no counterpart: {why}")

    def refuse(self, key: str, given: Any, fix: str) -> UsageError:
        return UsageError(f"{self.source} has {key} {shown(given)}: {fix}")


def shown(value: Any) -> str:
    return printable(str(value), 80)


def as_flag(setting: tuple[str, Any]) -> str:
    """A setting as the flag that says the same."""
    name, value = setting[0].replace("_", "-"), setting[1]
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name} {','.join(map(str, value)) if isinstance(value, list) else value}"


def read_starter(path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Settings of an experiment file, and a line for each of its keys. Raises UsageError in one sentence."""
    data, told = _parsed(path), Told(str(path))
    for key, given in _flat(data):
        if key not in KEYS:
            raise UsageError(f"{path} has the key {key!r}, which evolution-strategies-starter does not know: it has {', '.join(KEYS)}")
        KEYS[key](told, key, given)
    told.became("algorithm", "evolution-strategies-starter", {"strategy": "openai_es"}, "its gradient has no 1/sigma: --gradient-form starter, the default")
    return told.values, tuple(told.lines)


def read_given(path: Path) -> bytes:
    """A file of settings. Raises UsageError for what is no file, or larger than LARGEST_FILE."""
    try:
        with open(path, "rb", opener=regular) as file:
            data = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise UsageError(f"the configuration file {path} cannot be read: {error.strerror}") from None
    if len(data) > LARGEST_FILE:
        raise UsageError(f"the configuration file {path} has more than {LARGEST_FILE} bytes: give one with settings alone")
    return data


def _parsed(path: Path) -> dict[str, Any]:
    try:
        data = strict_json.loads(read_given(path), LARGEST_FILE)
    except DecodeError as error:
        raise UsageError(f"{path} is not JSON: {error}") from None
    missing = [name for name in PARTS if name not in data] if isinstance(data, dict) else list(PARTS)
    if missing:
        raise UsageError(f"{path} is no experiment file of evolution-strategies-starter, for it has no {' and no '.join(missing)}; settings of ours stand in a TOML file")
    return dict(data)


def _flat(data: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """(config.l2coeff, value) and so on, in the file's order."""
    for name, value in data.items():
        key = f"{before}{name}"
        if isinstance(value, dict) and key.count(".") < DEEPEST:
            yield from _flat(value, f"{key}.")
        else:
            yield key, value


# --- what each key becomes

Rule = Callable[[Told, str, Any], None]


def same(name: str, remark: str = "") -> Rule:
    """The same value under our name."""
    return lambda told, key, given: told.became(key, given, {name: given}, remark)


def none(why: str) -> Rule:
    return lambda told, key, given: told.nothing(key, given, why)


def chosen(name: str, names: dict[str, str]) -> Rule:
    """One of a few words, each with ours."""

    def rule(told: Told, key: str, given: Any) -> None:
        if not isinstance(given, str) or given not in names:
            raise told.refuse(key, given, f"use {' or '.join(names)}, the others have no counterpart")
        told.became(key, given, {name: names[given]})

    return rule


def fraction(told: Told, key: str, given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given <= 1:
        raise told.refuse(key, given, "use a probability from 0 to 1")
    return float(given)


def statistics(told: Told, key: str, given: Any) -> None:
    share = fraction(told, key, given)
    if share:
        told.became(key, given, {"obs_norm": True, "obs_sample": share}, "the seed says which slots, not each worker's own chance")
    else:
        told.became(key, given, {"obs_norm": False})


def evaluations(told: Told, key: str, given: Any) -> None:
    share = fraction(told, key, given)
    if not share:
        told.became(key, given, {"eval_every": 0})
        return
    told.became(key, given, {"eval_every": 1, "eval_episodes": max(1, round(share * 1000))}, "a fixed count in each generation, the episodes per thousand of the starter's, in place of a chance by task")


def episodes(told: Told, key: str, given: Any) -> None:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise told.refuse(key, given, "use a whole number of episodes from 1")
    even = max(2, given + given % 2)
    told.became(key, given, {"population": even}, "individuals, two a pair; the starter's minimum is the batch here, so long episodes are not left out")


def cutoff(told: Told, key: str, given: Any) -> None:
    form = "env" if given == "env_default" else str(given)
    told.became(key, given, {"step_limit": form}, "the limit never stops growing without a word" if form.startswith("adaptive") else "")


def bins(told: Told, key: str, given: Any) -> None:
    if given == "continuous:":
        told.became(key, given, {"action_bins": "none"}, "actions are clipped to their bounds, which the starter leaves to the environment")
    else:
        told.became(key, given, {"action_bins": given})


def connections(told: Told, key: str, given: Any) -> None:
    if given != "ff":
        raise told.refuse(key, given, "use ff, the only one that the starter builds")
    told.became(key, given, {"policy": "mlp"})


def policy_type(told: Told, key: str, given: Any) -> None:
    if given != "MujocoPolicy":
        raise told.refuse(key, given, "only the starter's MujocoPolicy has a counterpart; --policy has networks for pictures (docs/policies.md)")
    told.became(key, given, {"policy": "mlp"})


FIXED = "Adam's beta1, beta2 and epsilon are 0.9, 0.999 and 1e-8, the starter's own"
KEYS: dict[str, Rule] = {
    "config.l2coeff": same("l2", "added to the gradient, so it passes through Adam, as there"),
    "config.noise_stdev": same("sigma"),
    "config.episodes_per_batch": episodes,
    "config.timesteps_per_batch": same("min_steps", "the batch grows to at most 8 populations, --population-max says otherwise"),
    "config.calc_obstat_prob": statistics,
    "config.eval_prob": evaluations,
    "config.snapshot_freq": none("every generation can be resumed; the newest two checkpoints and the best are kept"),
    "config.return_proc_mode": chosen("shaping", {"centered_rank": "centered-rank", "sign": "sign", "centered_sign_rank": "centered-sign-rank"}),
    "config.episode_cutoff_mode": cutoff,
    "env_id": same("env", "an old version is answered with today's, aloud, where there is one"),
    "exp_prefix": none("a run's id is made from environment and time; --run names it"),
    "optimizer.type": chosen("optimizer", {"adam": "adam", "sgd": "sgd"}),
    "optimizer.args.stepsize": same("learning_rate"),
    "optimizer.args.momentum": same("momentum"),
    "optimizer.args.beta1": none(FIXED),
    "optimizer.args.beta2": none(FIXED),
    "optimizer.args.epsilon": none(FIXED),
    "policy.type": policy_type,
    "policy.args.ac_bins": bins,
    "policy.args.ac_noise_std": same("action_noise", "in training alone, as there"),
    "policy.args.connection_type": connections,
    "policy.args.hidden_dims": same("hidden"),
    "policy.args.nonlin_type": chosen("activation", {"tanh": "tanh", "relu": "relu", "elu": "elu"}),
    "policy.init_from": none("--warm-start begins with a checkpoint of ours; the starter's .h5 is pickled inside and is not read"),
}
