"""Functions to be maximised."""

from __future__ import annotations

import numpy as np

GOAL = np.array([0.5, -1.0, 2.0, 0.0])


def sphere(vector: np.ndarray, seed: int) -> float:
    """0 at GOAL, whatever the seed."""
    vector -= GOAL.astype(np.float32)  # it may do with its argument what it likes
    return -float(np.square(vector, dtype=np.float64).sum())


def rosenbrock(vector: np.ndarray, seed: int) -> float:
    """0 at (1, 1, …, 1), along a bent valley; noise by the seed."""
    x = vector.astype(np.float64)
    value = float((100 * np.square(x[1:] - np.square(x[:-1])) + np.square(1 - x[:-1])).sum())
    return -value + np.random.default_rng(seed).normal(scale=0.001)


rosenbrock.start = np.array([-1.0, 1.0])  # type: ignore[attr-defined]


STIFFNESS = 10.0 ** np.linspace(0, 3, 30)


def ellipsoid(vector: np.ndarray, seed: int) -> float:
    """-log10 of an ill-conditioned quadratic in 30 dimensions around (1, 1, …, 1); -3.7 at zero,
    larger without end near its middle.
    """
    return -float(np.log10(np.sum(STIFFNESS * np.square(vector.astype(np.float64) - 1)) + 1e-12))


def picky(vector: np.ndarray, seed: int) -> float:
    """Raises for many vectors, and has no value for others."""
    if vector[0] > 0.1:
        raise ArithmeticError("no value above")
    return float("nan") if vector[1] > 0.1 else float(vector.sum())


def strange(vector: np.ndarray, seed: int) -> None:
    """No number."""


def undefined(vector: np.ndarray, seed: int) -> float:
    """Not a number."""
    return float("nan")


def restless(vector: np.ndarray, seed: int) -> float:
    """Another value each time."""
    restless.calls = getattr(restless, "calls", 0) + 1  # type: ignore[attr-defined]
    return float(restless.calls)  # type: ignore[attr-defined]


def steady(vector: np.ndarray) -> float:
    """0 at zeros; it needs no seed."""
    return -float(np.square(vector, dtype=np.float64).sum())


def greedy(vector: np.ndarray, seed: int, more: int) -> float:
    """It takes more than it gets."""
    return 0.0


misshapen = lambda vector, seed: 0.0  # noqa: E731 - it gets an attribute
misshapen.start = [1.0, 2.0, 3.0]  # type: ignore[attr-defined]


def far(vector: np.ndarray, seed: int) -> float:
    """0 at (±1, ±1, …), many steps from zeros; noise by the seed, so that single values lie."""
    goal = np.where(np.arange(len(vector)) % 3, 1.0, -1.0)
    return -float(np.square(vector - goal, dtype=np.float64).sum()) + np.random.default_rng(
        seed
    ).normal(scale=0.3)


def arm(angles: np.ndarray) -> tuple[float, np.ndarray]:
    """A planar arm of length 1: minus the variance of its joints' angles, and where its hand is."""
    total = np.add.accumulate(angles.astype(np.float64))
    links = np.stack([np.cos(total), np.sin(total)], axis=1)
    return -float(np.var(angles.astype(np.float64))), links.sum(axis=0) / len(angles)


def bowls(vectors: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """0 at 3, many vectors in one call; noise by the seed. ``sizes``: of its calls."""
    bowls.sizes.add(len(vectors))  # type: ignore[attr-defined]
    vectors -= 3  # it may do with its arguments what it likes
    noise = [np.random.default_rng(seed).normal(scale=0.01) for seed in seeds]
    return np.array(noise) - np.square(vectors, dtype=np.float64).sum(axis=1)


bowls.batched, bowls.sizes = True, set()  # type: ignore[attr-defined]


def crowded(vectors: np.ndarray) -> np.ndarray:
    """0 at zeros, but each value depends on how many vectors there are."""
    return -np.square(vectors, dtype=np.float64).sum(axis=1) - 1e-12 * len(vectors)


crowded.batched = True  # type: ignore[attr-defined]


def narrow(vectors: np.ndarray) -> np.ndarray:
    """Takes no vector far from zeros."""
    if (abs(vectors) > 0.5).any():
        raise ValueError("too far")
    return -np.square(vectors, dtype=np.float64).sum(axis=1)


narrow.batched = True  # type: ignore[attr-defined]


def uneven(vectors: np.ndarray) -> np.ndarray:
    """One value too many."""
    return np.zeros(len(vectors) + 1)


uneven.batched = True  # type: ignore[attr-defined]


def corner(vector: np.ndarray) -> float:
    """Best at (4, -200): the first variable's bound, and inside the second's. Raises outside."""
    if not (0 <= vector[0] <= 4 and -1000 <= vector[1] <= 1000):
        raise ValueError(f"{vector} is outside")
    return -float((vector[0] - 5) ** 2 + ((vector[1] + 200) / 100) ** 2)


corner.lower, corner.upper = [0, -1000], [4, 1000]  # type: ignore[attr-defined]
corner.start = [1, 0]  # type: ignore[attr-defined]


def reversed_box(vector: np.ndarray) -> float:
    """Its bounds enclose nothing."""
    return 0.0


reversed_box.lower, reversed_box.upper = 1.0, [2.0, 0.5]  # type: ignore[attr-defined]


def nowhere(vector: np.ndarray) -> float:
    """Its bounds are reversed, and not finite."""
    return 0.0


nowhere.lower, nowhere.upper = np.inf, -np.inf  # type: ignore[attr-defined]


def narrow_box(vector: np.ndarray) -> float:
    """Two float32 numbers apart."""
    return 0.0


narrow_box.lower, narrow_box.upper = 1e8, 1e8 + 16  # type: ignore[attr-defined]


def elsewhere(vector: np.ndarray) -> float:
    """Its attributes have names of other programs."""
    return 0.0


elsewhere.initial, elsewhere.low, elsewhere.calls = [1, 2], 0, 7  # type: ignore[attr-defined]
