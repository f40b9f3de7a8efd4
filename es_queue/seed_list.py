"""A policy as a short list of seeds: where its first parameters come from, then the noise index of each mutation.

Such et al. 2017, https://arxiv.org/abs/1712.06567, section 3.1: a network of millions of parameters in a few bytes a
mutation. The file is JSON: what a checkpoint's meta says, ``seeds``, ``sigma`` (one for all, or one each), the digest of
the noise table and that of the parameters that must come out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue import strict_json
from es_queue.config import AUTO, RunConfig
from es_queue.custom_code import is_trusted
from es_queue.environments import EnvironmentRequest
from es_queue.environments.objective import first_vector
from es_queue.errors import DecodeError, EsQueueError, RunFolderError
from es_queue.genome import Floats, Links, descended
from es_queue.noise import LARGEST_DEFAULT, NoiseTable, default_size
from es_queue.numerics import array_digest
from es_queue.plan import first_parameters_seed
from es_queue.policies import Policy
from es_queue.policies.archive import UNREADABLE, read_arrays
from es_queue.policies.saved import described_policy
from es_queue.settings import config_from_json

KIND = "es-queue seed list"
#: Bytes of a file: 100,000 mutations with a sigma each take about three million.
MOST_BYTES = 2**23
#: Numbers, lists and objects in a file. An empty list takes 3 bytes of text and 64 of memory.
MOST_ELEMENTS = 2**19
#: What a list makes unless it is trusted: parameters, and parameters times seeds.
MOST_PARAMETERS, MOST_WORK = 2**23, 2**35
OWN = ("kind", "seeds", "sigma", "noise", "digest", "obs_mean", "obs_std")

Arrays = dict[str, NDArray[Any]]


def first_parameters(config: RunConfig, policy: Policy) -> Floats:
    """float32 [size]: what the seed and --init give, and for an objective its own first vector."""
    if config.objective and config.init == AUTO:
        return first_vector(EnvironmentRequest.of(config))
    return np.asarray(policy.initial(first_parameters_seed(config.seed), config.init), np.float32)


def decoded(config: RunConfig, policy: Policy, links: Links, noise: NoiseTable) -> Floats:
    """The parameters that mutations make of a run's first ones, float32 [size]. Raises ValueError for an index outside the noise."""
    return descended(first_parameters(config, policy), links, noise)


def seed_list_of(path: Path, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> str:
    """The JSON text of a checkpoint's policy; ``arrays`` and ``meta`` are what ``read_checkpoint`` gave.

    Raises RunFolderError where the checkpoint holds no mutations, or others than those of its parameters.
    """
    try:
        found = read_arrays(path, ("genome_index", "genome_sigma"))
        links = Links(found["genome_index"].astype(np.int64), found["genome_sigma"].astype(np.float32))
    except RunFolderError:
        raise RunFolderError("it has no list of mutations: only the best checkpoint of a run with the strategy ga has one") from None
    except UNREADABLE as error:
        raise RunFolderError(f"its mutations cannot be read: {error}") from None
    parameters, (config, policy, noise) = np.asarray(arrays["parameters"], np.float32), parts(meta, links)
    same = {float(one) for one in links.sigma}
    values: dict[str, Any] = {"kind": KIND, "noise": noise.digest, "digest": array_digest(parameters), **meta, "seeds": links.index.tolist()}
    values["sigma"] = same.pop() if len(same) == 1 else links.sigma.tolist()
    if config.obs_norm:
        values |= {name: np.asarray(arrays[name], np.float32).tolist() for name in ("obs_mean", "obs_std")}
    try:
        expect(values["digest"], decoded(config, policy, links, noise))
    except ValueError as error:
        raise RunFolderError(f"its mutations are not possible: {error}") from None
    text = json.dumps(values)
    try:
        refuse_long(text.encode())
    except DecodeError as error:
        raise RunFolderError(f"its list of {len(links.index)} mutations is too long: {error}; export it to .npz") from None
    return text


def read_seed_list(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """What ``read_checkpoint`` would give of the policy's checkpoint. Raises RunFolderError with one sentence."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        refuse_long(data)
        values = strict_json.loads(data, MOST_BYTES)
    except OSError as error:
        raise RunFolderError(f"it cannot be read: {error.strerror}") from None
    except DecodeError as error:
        raise RunFolderError(f"this is not a seed list: {error}") from None
    if not isinstance(values, dict) or values.get("kind") != KIND:
        raise RunFolderError(f"this is not a seed list: its kind is not {KIND!r}")
    meta = {name: value for name, value in values.items() if name not in OWN}
    try:
        links = links_of(values)
        config, policy, noise = parts(meta, links)
        if values["noise"] != noise.digest:
            raise RunFolderError("it was made with other noise than this es-queue makes: play it with the es-queue that wrote it")
        parameters = decoded(config, policy, links, noise)
        expect(values["digest"], parameters)
        mean = vector(values.get("obs_mean", [0.0] * policy.observation_size))
        return {"parameters": parameters, "obs_mean": mean, "obs_std": vector(values.get("obs_std", [1.0] * policy.observation_size))}, meta
    except KeyError as error:
        raise RunFolderError(f"the seed list has no {error}") from None
    except (ValueError, TypeError, OverflowError) as error:
        raise RunFolderError(f"the seed list holds what cannot be: {error}") from None


def refuse_long(data: bytes) -> None:
    """Raises DecodeError for a text with more than a seed list has, before it is parsed."""
    elements = sum(data.count(one) for one in (b",", b"[", b"{"))
    if len(data) > MOST_BYTES or elements > MOST_ELEMENTS:
        raise DecodeError(
            f"{len(data)} bytes of JSON with {elements} elements, where at most {MOST_BYTES} and "
            f"{MOST_ELEMENTS} are possible"
        )


def links_of(values: Mapping[str, Any]) -> Links:
    """Raises KeyError or ValueError."""
    seeds, sigma = values["seeds"], values["sigma"]
    if not isinstance(seeds, list) or any(type(one) is not int or not 0 <= one < 2**32 for one in seeds):
        raise ValueError("its seeds are no list of noise indices")
    given = vector(sigma if isinstance(sigma, list) else [sigma] * len(seeds))
    if len(given) != len(seeds) or not (given >= 0).all():
        raise ValueError("its sigma is neither a number of 0 or more nor one for each seed")
    return Links(np.array(seeds, np.int64), given)


def vector(values: Any) -> Floats:
    """A list of finite numbers as float32. Raises ValueError."""
    if not isinstance(values, list) or any(type(one) not in (int, float) for one in values):
        raise ValueError("a list of numbers is none")
    with np.errstate(over="ignore"):
        found = np.array(values, np.float32)
    if not np.isfinite(found).all():
        raise ValueError("a list of numbers holds one that is not finite")
    return found


def parts(meta: Mapping[str, Any], links: Links) -> tuple[RunConfig, Policy, NoiseTable]:
    """The settings, the policy and the noise that a checkpoint's meta names.

    Raises RunFolderError, also where ``links`` would make too much of them.
    """
    try:
        config = config_from_json(json.dumps(meta["config"]))
        policy = described_policy(config, meta)
        refuse_large(config, policy.size, len(links.index))
        return config, policy, table_of(config, policy.size)
    except RunFolderError:
        raise
    except KeyError as error:
        raise RunFolderError(f"its settings have no {error}") from None
    except (TypeError, ValueError, AttributeError, EsQueueError) as error:
        raise RunFolderError(f"its settings do not describe a policy: {error}") from None


def refuse_large(config: RunConfig, size: int, seeds: int) -> None:
    """Raises RunFolderError for parameters whose computation takes much memory or time, unless the file is trusted."""
    if is_trusted():
        return
    if size > MOST_PARAMETERS:
        raise RunFolderError(
            f"its policy {config.policy_name} has {size:,} parameters, and a seed list may make at most "
            f"{MOST_PARAMETERS:,}: if you trust the file, give --trust"
        )
    if size * seeds > MOST_WORK:
        raise RunFolderError(
            f"its {seeds:,} seeds for {size:,} parameters each take {size * seeds:,} steps, and a seed "
            f"list may take at most {MOST_WORK:,}: if you trust the file, give --trust"
        )


def table_of(config: RunConfig, size: int) -> NoiseTable:
    """The noise that a file names, for policies of ``size`` parameters. Raises ValueError for a table that fits no run of
    them: whoever wrote the file would have this host make it."""
    if size > config.noise_size:
        raise ValueError(f"a noise table of {config.noise_size} floats is too small for {size} parameters")
    most = max(LARGEST_DEFAULT, default_size(size))
    if config.noise_size > most:
        raise ValueError(f"a noise table of {config.noise_size} floats is larger than the {most} that are made for a file; play the run's checkpoint instead")
    return NoiseTable.open(config.noise_size)


def expect(digest: str, parameters: Floats) -> None:
    """Raises RunFolderError where other parameters come out than were written down."""
    found = array_digest(parameters)
    if found != digest:
        raise RunFolderError(
            f"its seeds make parameters of digest {found}, not {digest}: the run began with a checkpoint of another (--warm-start), "
            "or this machine computes other first parameters"
        )
