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

from es_queue.config.run_config import VIRTUAL
from es_queue.config.settings import setting
from es_queue.numerics.arrays import Floats
from es_queue.policies.base import Layer, Policy

EPSILON = 1e-5


class NormSettings(Policy.Settings):
    batch_norm = setting(
        "none",
        "virtual: normalise units or convolutions with a reference batch of observations, which "
        "depends only on the seed",
        choices=("none", VIRTUAL),
    )


def fold_normalisation(weights: Floats, products: Floats, scale: Floats, shift: Floats) -> Layer:
    """Weights [rows, columns] and bias [columns] of the plain layer equal to a normalised one.

    products: float32[..., columns], x @ W for the whole reference batch (b shifts the mean equally,
    and cancels)
    """
    flat = products.reshape(-1, products.shape[-1])
    mean, variance = flat.mean(0, dtype=np.float64), flat.var(0, dtype=np.float64)
    gain = scale / np.sqrt(variance + EPSILON)
    return (weights * gain).astype(np.float32), (shift - mean * gain).astype(np.float32)
