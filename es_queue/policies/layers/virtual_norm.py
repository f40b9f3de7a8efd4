"""Virtual batch normalisation: each unit is normalised by its statistics over a fixed reference
batch.

Salimans et al. 2016, arXiv:1606.03498, section 3.2; used for Evolution Strategies in 2017,
arXiv:1703.03864, section 2.2. The statistics depend on the individual's own parameters, so the
batch passes through its layers once, when it is bound. A normalised layer is activation(scale · (z
- mean) / √(var + EPSILON) + shift), z = x @ W + b. It acts as a plain layer with weights W · gain
and bias shift - mean · gain.
"""

from __future__ import annotations

import numpy as np

from es_queue.errors import UsageError
from es_queue.numerics.arrays import Floats

EPSILON = 1e-5


def fold_normalisation(
    weights: Floats, products: Floats, scale: Floats, shift: Floats
) -> tuple[Floats, Floats]:
    """Weights [rows, columns] and bias [columns] of the plain layer equal to a normalised one.

    products: float32[..., columns], x @ W for the whole reference batch (b shifts the mean equally,
    and cancels)
    """
    flat = products.reshape(-1, products.shape[-1])
    mean, variance = flat.mean(0, dtype=np.float64), flat.var(0, dtype=np.float64)
    gain = scale / np.sqrt(variance + EPSILON)
    return (weights * gain).astype(np.float32), (shift - mean * gain).astype(np.float32)


def require_reference(reference: Floats | None, size: int) -> Floats:
    """The reference batch float32[N, d]. Raises UsageError if it is missing or has another size."""
    if reference is None:
        raise UsageError(
            "batch_norm is virtual, but the checkpoint has no reference batch: use one that "
            "this version wrote"
        )
    if reference.ndim != 2 or not len(reference) or reference.shape[1] != size:
        raise UsageError(
            f"the reference batch has the shape {list(reference.shape)}, but observations "
            f"have {size} numbers"
        )
    return np.ascontiguousarray(reference, np.float32)
