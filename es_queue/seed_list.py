"""A policy as a short list of seeds, a noise index per mutation: Such et al. 2017,
https://arxiv.org/abs/1712.06567, section 3.1.

The file is JSON: a checkpoint's meta, ``seeds``, ``sigma`` (one for all, or one each), the digest
of the noise table, and that of the resulting parameters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.config.run_config import RunConfig
from es_queue.errors import DecodeError, EsQueueError, RunFolderError
from es_queue.files import FORMAT, parse_json, read_file, read_npz
from es_queue.genetics import MutationChain, apply_mutations
from es_queue.numerics.arrays import Floats, typed_array
from es_queue.numerics.fingerprint import array_digest
from es_queue.numerics.noise_table import LARGEST_DEFAULT, NoiseTable, default_size
from es_queue.policies import initial_parameters
from es_queue.policies.base import Policy
from es_queue.policies.saved_policy import policy_from_meta
from es_queue.user_code import is_trusted, named_modules, require_trust

KIND = "es-queue seed list"
#: Bytes of a file: 100,000 mutations with a sigma each take about three million.
MAX_BYTES = 2**23
#: What a list makes unless it is trusted: parameters, and parameters times seeds.
MOST_PARAMETERS, MOST_WORK = 2**23, 2**35
SEED_LIST_KEYS = ("kind", "seeds", "sigma", "noise", "digest", "obs_mean", "obs_std")

Arrays = dict[str, NDArray[Any]]


def decode_parameters(
    config: RunConfig, policy: Policy, mutations: MutationChain, noise: NoiseTable
) -> Floats:
    """The parameters after ``mutations`` of a run's first ones. Raises ValueError."""
    return apply_mutations(initial_parameters(config, policy), mutations, noise)


def format_seed_list(
    path: Path, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]
) -> str:
    """The JSON text of a checkpoint's policy. Raises RunFolderError for no mutations, or ones that
    do not give its parameters.
    """
    genome, _ = read_npz(path, ("genome_index", "genome_sigma"))
    if not genome:
        raise RunFolderError(
            "it has no list of mutations: only the best checkpoint of a run with the "
            "strategy ga has one"
        )
    index = typed_array(genome, "genome_index", np.int64, (None,))
    sigma = typed_array(genome, "genome_sigma", np.float32, (len(index),))
    mutations = MutationChain(index, sigma)
    parameters = np.asarray(arrays["parameters"], np.float32)
    config, policy, noise = rebuild_parts(meta, mutations)
    deviations = {float(deviation) for deviation in mutations.sigma}
    values: dict[str, Any] = {
        "kind": KIND,
        "noise": noise.digest,
        "digest": array_digest(parameters),
        **meta,
        "seeds": mutations.index.tolist(),
    }
    values["sigma"] = deviations.pop() if len(deviations) == 1 else mutations.sigma.tolist()
    if config.obs_norm:
        values |= {
            name: np.asarray(arrays[name], np.float32).tolist() for name in ("obs_mean", "obs_std")
        }
    try:
        validate_digest(values["digest"], decode_parameters(config, policy, mutations, noise))
    except ValueError as error:
        raise RunFolderError(f"its mutations are not possible: {error}") from None
    text = json.dumps(values)
    try:
        parse_json(text, MAX_BYTES)
    except DecodeError as error:
        raise RunFolderError(
            f"its list of {len(mutations.index)} mutations is too long: {error}; export it to .npz"
        ) from None
    return text


def read_seed_list(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """The checkpoint's content as from ``read_npz``. Raises RunFolderError."""
    try:
        values = parse_json(read_file(path, MAX_BYTES), MAX_BYTES)
    except OSError as error:
        raise RunFolderError(f"it cannot be read: {error.strerror}") from None
    except DecodeError as error:
        raise RunFolderError(f"this is not a seed list: {error}") from None
    if not isinstance(values, dict) or values.get("kind") != KIND:
        raise RunFolderError(f"this is not a seed list: its kind is not {KIND!r}")
    if values.get("format") != FORMAT:
        raise RunFolderError(f"it is not of format {FORMAT}, which this version of es-queue reads")
    meta = {name: value for name, value in values.items() if name not in SEED_LIST_KEYS}
    try:
        mutations = parse_mutations(values)
        config, policy, noise = rebuild_parts(meta, mutations)
        if values["noise"] != noise.digest:
            raise RunFolderError(
                "it was made with another version of the noise table: play it with the es-queue "
                "that wrote it"
            )
        parameters = decode_parameters(config, policy, mutations, noise)
        validate_digest(values["digest"], parameters)
        size, mean, std = policy.observation_size, [0.0], [1.0]
        return {
            "parameters": parameters,
            "obs_mean": parse_vector(values["obs_mean"] if config.obs_norm else mean * size),
            "obs_std": parse_vector(values["obs_std"] if config.obs_norm else std * size),
        }, meta
    except KeyError as error:
        raise RunFolderError(f"the seed list has no {error}") from None
    except (ValueError, TypeError, OverflowError) as error:
        raise RunFolderError(f"the seed list contains an impossible value: {error}") from None


def parse_mutations(values: Mapping[str, Any]) -> MutationChain:
    """Raises KeyError or ValueError."""
    seeds, sigma = values["seeds"], values["sigma"]
    if not isinstance(seeds, list) or any(
        type(seed) is not int or not 0 <= seed < 2**32 for seed in seeds
    ):
        raise ValueError("its seeds are not a list of noise indices")
    given = parse_vector(sigma if isinstance(sigma, list) else [sigma] * len(seeds))
    if len(given) != len(seeds) or not (given >= 0).all():
        raise ValueError("its sigma must be a number, 0 or more, or one such number per seed")
    return MutationChain(np.array(seeds, np.int64), given)


def parse_vector(values: Any) -> Floats:
    """A list of finite numbers as float32. Raises ValueError."""
    if not isinstance(values, list) or any(type(number) not in (int, float) for number in values):
        raise ValueError("a value is not a list of numbers")
    with np.errstate(over="ignore"):
        array = np.array(values, np.float32)
    if not np.isfinite(array).all():
        raise ValueError("a list of numbers contains one that is not finite")
    return array


def rebuild_parts(
    meta: Mapping[str, Any], links: MutationChain
) -> tuple[RunConfig, Policy, NoiseTable]:
    """The settings, policy and noise of a checkpoint's meta. Raises RunFolderError, also if
    ``links`` would make them too large.
    """
    try:
        config = RunConfig.of(meta["config"], "the seed list")
        require_trust("the seed list", named_modules(config))
        policy = policy_from_meta(config, meta)
        refuse_large(config, policy.size, len(links.index))
        return config, policy, open_noise_table(config, policy.size)
    except RunFolderError:
        raise
    except KeyError as error:
        raise RunFolderError(f"its settings have no {error}") from None
    except (TypeError, ValueError, AttributeError, EsQueueError) as error:
        raise RunFolderError(f"its settings do not describe a policy: {error}") from None


def refuse_large(config: RunConfig, size: int, seeds: int) -> None:
    """Raises RunFolderError for parameters that take much memory or time, unless trusted."""
    if is_trusted():
        return
    if size > MOST_PARAMETERS:
        raise RunFolderError(
            f"its policy {config.policy_name} has {size:,} parameters, and a seed list may make "
            f"at most {MOST_PARAMETERS:,}: if you trust the file, use --trust"
        )
    if size * seeds > MOST_WORK:
        raise RunFolderError(
            f"its {seeds:,} seeds for {size:,} parameters each take {size * seeds:,} steps, and "
            f"a seed list may take at most {MOST_WORK:,}: if you trust the file, use --trust"
        )


def open_noise_table(config: RunConfig, size: int) -> NoiseTable:
    """For policies of ``size`` parameters. Raises ValueError for a table that fits no such run,
    which this host would have to create.
    """
    if size > config.noise_size:
        raise ValueError(
            f"a noise table of {config.noise_size} floats is too small for {size} parameters"
        )
    most = max(LARGEST_DEFAULT, default_size(size))
    if config.noise_size > most:
        raise ValueError(
            f"a noise table of {config.noise_size} floats is larger than the limit of {most} "
            "for a file; play the run's checkpoint instead"
        )
    return NoiseTable.open(config.noise_size)


def validate_digest(digest: str, parameters: Floats) -> None:
    actual = array_digest(parameters)
    if actual != digest:
        raise RunFolderError(
            f"its seeds make parameters with the digest {actual}, not {digest}: the run began with "
            "another run's checkpoint (--warm-start), or this machine computes other initial "
            "parameters"
        )
