"""Initial weights of a policy, from raw Philox words: equal on every numpy, unlike
``Generator.normal``.
"""

from __future__ import annotations

import math

import numpy as np

from es_queue.errors import UsageError
from es_queue.numerics.arrays import Doubles, Floats

# Second word of the Philox key: far above those of es_queue.slot_plan, so that no stream
# is shared.
DOMAIN = int.from_bytes(b"initial.")
LAST_LAYER = 0.01  # near-zero first outputs: no action is saturated before anything is learnt
INITS = ("zero", "orthogonal", "normal")


def draw_normals(generator: np.random.Philox, count: int) -> Doubles:
    """float64[count] of the standard normal distribution (Box and Muller 1958) from raw 64-bit
    words.
    """
    pairs = (count + 1) // 2
    words = np.asarray(generator.random_raw(2 * pairs), dtype=np.uint64) >> np.uint64(11)
    uniform = words.astype(np.float64) * 2.0**-53
    # 1 - u lies in (0, 1], so the logarithm is finite.
    radius = np.sqrt(-2.0 * np.log(1.0 - uniform[:pairs]))
    angle = (2.0 * math.pi) * uniform[pairs:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def seeded_generator(seed: int) -> np.random.Philox:
    """Raw words for the first parameters of a seed."""
    return np.random.Philox(key=np.array([seed, DOMAIN], dtype=np.uint64))


def draw_unlayered(size: int, seed: int, init: str, reason: str) -> Doubles:
    """float64[size] for a policy whose layers are unknown: zeros for auto and zero, standard normal
    numbers for normal. Raises UsageError with the ``reason`` for another init.
    """
    if init in ("auto", "zero"):
        return np.zeros(size)
    if init != "normal":
        raise UsageError(f"init is {init}, but {reason}: use auto, zero or normal")
    return draw_normals(seeded_generator(seed), size)


def draw_orthogonal(generator: np.random.Philox, rows: int, columns: int) -> Doubles:
    """float64[rows, columns] with orthonormal columns, or orthonormal rows if it has fewer rows.

    QR of a normal matrix, with the signs of R's diagonal moved to Q, which makes it uniform (Saxe
    et al. 2014).
    """
    wide = columns > rows
    drawn = draw_normals(generator, rows * columns).reshape(rows, columns)
    q, r = np.linalg.qr(drawn.T if wide else drawn)
    q = q * np.where(np.diagonal(r) < 0, -1.0, 1.0)
    return q.T if wide else q


def draw_initial_weights(
    shapes: list[tuple[int, int]], gain: float, seed: int, init: str
) -> list[Floats]:
    """The first matrices, float32[rows, columns] each, of consecutive layers.

    gain: factor of all layers except the last, which has LAST_LAYER
    init: zero, orthogonal, or normal (deviation 1/sqrt(rows), so that outputs are as large as
    inputs)

    Raises UsageError for another init.
    """
    if init not in INITS:
        raise UsageError(f"there is no init {init!r}; choose one of {', '.join(INITS)}")
    if init == "zero":
        return [np.zeros(shape, np.float32) for shape in shapes]
    generator = seeded_generator(seed)
    matrices = []
    for number, (rows, columns) in enumerate(shapes, start=1):
        if init == "orthogonal":
            drawn = draw_orthogonal(generator, rows, columns)
        else:
            drawn = draw_normals(generator, rows * columns).reshape(rows, columns) / math.sqrt(rows)
        factor = LAST_LAYER if number == len(shapes) else gain
        matrices.append((factor * drawn).astype(np.float32))
    return matrices
