"""Noise index and environment seeds of each slot: a pure function of (run seed, generation, slot).

A multiply-shift makes integers from raw Philox output, which numpy guarantees, keyed by the run's
seed with the counter (slot, 0, generation, stream). Salmon et al. 2011, "Parallel random numbers".
"""

from __future__ import annotations

import math
from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from es_queue.config.run_config import RunConfig
from es_queue.config.scaling import scaled
from es_queue.config.schedules import ASYNC
from es_queue.config.settings import AUTO
from es_queue.errors import UsageError
from es_queue.numerics.arrays import Doubles, Integers, Mask

GROWTH = 8  # the most growth of a population by --min-steps, unless --population-max limits it
WORDS = 4  # Philox4x64 yields four words per counter value
(
    SLOTS,
    TRAINING,
    EVALUATION,
    CONFIRMATION,
    FINAL_SEEDS,
    CHOICE,
    RETRY,
    ELITE_SEEDS,
    BEHAVIOUR,
    MEMBER,
    PARENTS,
    REFERENCE,
) = range(12)

# Environment seeds are int32 for EnvPool. No test repeats a training seed.
SEED_RANGES = {
    TRAINING: (0, 2**30),
    ELITE_SEEDS: (0, 2**30),  # it selects, so it is training
    BEHAVIOUR: (0, 2**30),
    REFERENCE: (0, 2**30),
    EVALUATION: (2**30, 2**28),
    CONFIRMATION: (2**30 + 2**28, 2**28),
    FINAL_SEEDS: (2**30 + 2**29, 2**29),
}


class SlotPlan(NamedTuple):
    """The plan of the first S training slots of a generation.

    noise_indices: int64[S], start of each slot's slice of the noise table, distinct in a generation
    seeds:         int64[S, individuals, episodes], environment seeds
    noise_keys:    uint64[S], key of the action noise, shared by both halves of a pair
    sampled:       bool[S], whether the slot's episodes count in the observation statistics
    """

    noise_indices: Integers
    seeds: Integers
    noise_keys: NDArray[np.uint64]
    sampled: Mask


def plan_slots(
    seed: int,
    generation: int,
    stop: int,
    *,
    positions: int,
    individuals: int,
    episodes: int = 1,
    sharing: str = "pair",
    sampled: float = 1.0,
) -> SlotPlan:
    """The plan of the first ``stop`` slots; slot k does not depend on their number.

    seed: the run's; positions: number of noise indices; individuals: per slot (2 for mirrored
    sampling); episodes: per individual; sharing: "pair", "generation" or "slot" share environment
    seeds; sampled: fraction of the slots
    """
    words = raw_words(seed, SLOTS, generation, stop * WORDS).reshape(stop, WORDS)
    indices = _distinct(seed, SLOTS, generation, words[:, 0], positions)
    is_sampled = as_fractions(words[:, 2]) < sampled
    is_sampled[:1] = sampled > 0
    drawn = {
        "generation": (1, 1, episodes),
        "pair": (stop, 1, episodes),
        "slot": (stop, individuals, episodes),
    }[sharing]
    seeds = environment_seeds(seed, TRAINING, generation, math.prod(drawn)).reshape(drawn)
    shared = np.broadcast_to(seeds, (stop, individuals, episodes))
    return SlotPlan(indices, shared, words[:, 1], is_sampled)


def environment_seeds(seed: int, stream: int, generation: int, count: int) -> Integers:
    """int64[count], distinct environment seeds of a stream in SEED_RANGES."""
    low, size = SEED_RANGES[stream]
    words = raw_words(seed, stream, generation, count * WORDS)[::WORDS]
    return low + _distinct(seed, stream, generation, words, size)


def evaluation_seeds(config: RunConfig, stream: int, generation: int, count: int) -> Integers:
    """``environment_seeds`` of a run; those of FINAL_SEEDS are the same in all generations."""
    return environment_seeds(config.seed, stream, 0 if stream == FINAL_SEEDS else generation, count)


def _distinct(
    seed: int, stream: int, generation: int, words: NDArray[np.uint64], size: int
) -> Integers:
    """Integers in [0, size). A slot that repeats an earlier one gets the first unused value of its
    own stream, in slot order, so that slot k's value does not depend on later slots.
    """
    drawn = multiply_shift(words, size)
    if len(drawn) > size:
        raise ValueError(f"{len(drawn)} distinct values were requested out of {size}")
    ordered = np.sort(drawn)
    if (ordered[1:] != ordered[:-1]).all():
        return drawn
    values, first = np.unique(drawn, return_index=True)
    waiting = np.setdiff1d(np.arange(len(drawn)), first).tolist()
    used = set[int]()
    while waiting:
        slot = heappop(waiting)
        generator = np.random.Philox(
            key=np.array([seed, 1 + slot], np.uint64),
            counter=np.array([0, stream, generation, RETRY], np.uint64),
        )
        while True:
            value = int(multiply_shift(np.array([generator.random_raw()], np.uint64), size)[0])
            at = int(np.searchsorted(values, value))
            owner = int(first[at]) if at < len(values) and values[at] == value else None
            if value not in used and (owner is None or owner >= slot):
                break
        drawn[slot] = value
        used.add(value)
        if owner is not None:  # a later slot has drawn it, and must draw again
            heappush(waiting, owner)
    return drawn


def resolve_seed_sharing(config: RunConfig, individuals: int) -> str:
    """The meaning of ``auto`` in ``env_seeds``, by a slot's number of individuals."""
    if config.env_seeds != AUTO:
        return config.env_seeds
    # of several generations, one would have the easy seed
    alone = "slot" if config.schedule == ASYNC else "generation"
    return "pair" if individuals == 2 else alone


def max_slots(config: RunConfig, individuals: int) -> int:
    """The most training slots of a publication, each of so many individuals.

    In the asynchronous schedule, more workers than ``max_lag`` batches are useless; two more
    batches are for waiting workers.
    """
    population = config.population
    if config.min_steps:
        population = config.population_max or GROWTH * population
    if config.schedule == ASYNC:
        population *= config.max_lag + 2
    return population // individuals


def validate_noise_size(config: RunConfig, size: int) -> None:
    """Refuse a noise table without a position for each slot of a policy of ``size`` parameters.
    Raises UsageError.
    """
    slots = max_slots(scaled(config), 1)
    if config.noise_size - size + 1 < slots:
        raise UsageError(
            f"noise_size is {config.noise_size}, but {slots} slots need as many different "
            f"positions for {size} parameters: use {slots + size} or more"
        )


def draw_parents(seed: int, generation: int, slots: Integers, parents: int) -> Integers:
    """The parent that each of the ``slots`` int64[S] mutates, uniform: int64[S]."""
    stop = int(slots.max(initial=0)) + 1
    return multiply_shift(
        _parent_words(seed, generation, 1 << (stop - 1).bit_length())[slots], parents
    )


@lru_cache(maxsize=16)
def _parent_words(seed: int, generation: int, count: int) -> NDArray[np.uint64]:
    return raw_words(seed, PARENTS, generation, count * WORDS)[::WORDS]


def raw_words(seed: int, stream: int, number: int, count: int) -> NDArray[np.uint64]:
    """uint64[count] of the number-th block of a stream of the run."""
    generator = np.random.Philox(
        key=np.array([seed, 0], dtype=np.uint64),
        counter=np.array([0, 0, number, stream], dtype=np.uint64),
    )
    return np.asarray(generator.random_raw(count), dtype=np.uint64)


def as_fractions(words: NDArray[np.uint64]) -> Doubles:
    """float64 of the same shape, uniform in [0, 1), with 53 bits."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def multiply_shift(words: NDArray[np.uint64], size: int) -> Integers:
    """floor(word * size / 2^64) for 0 < size <= 2^32, without overflow (Lemire 2019)."""
    if not 0 < size <= 2**32:
        raise ValueError(f"cannot draw from {size} values: use 1 to 2^32")
    wide = np.uint64(size)
    high, low = words >> np.uint64(32), words & np.uint64(0xFFFFFFFF)
    return ((high * wide + ((low * wide) >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)


def uniform(seed: int, stream: int, number: int) -> float:
    """The number-th draw of a stream of the run, uniform in [0, 1), with 53 bits."""
    return float(uniforms(seed, stream, number, 1)[0])


def uniforms(seed: int, stream: int, number: int, count: int) -> Doubles:
    """float64[count], uniform in [0, 1), of the number-th block of a stream of the run."""
    return as_fractions(raw_words(seed, stream, number, count))


def initial_parameters_seed(seed: int, member: int = 0) -> int:
    """The seed of a member's first parameters, distinct from every other stream."""
    return int(raw_words(seed, CHOICE, member, 1)[0]) & (2**63 - 1)
