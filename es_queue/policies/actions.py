"""Converts a policy's raw outputs to the environment's action."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.environments.interface import ActionSpec
from es_queue.errors import EsQueueError, UsageError
from es_queue.numerics.arrays import Doubles, Floats

ActionFunction = Callable[[Floats], NDArray[Any]]


class NonFiniteOutput(EsQueueError):  # noqa: N818 - it is what came out; the sentence says that it is an error
    """A policy returned NaN or infinity, so the episode failed. ``rows``: the affected rows."""

    def __init__(self, rows: list[int]) -> None:
        super().__init__("the policy returned a number that is not finite")
        self.rows = rows


class ActionMap:
    """Raw outputs -> actions of one space. Raises UsageError for an unknown kind of space, and for
    tanh with infinite bounds.

    bound: how a box is kept inside its bounds: "clip" to the finite ones, or "tanh" onto all of
    them
    """

    def __init__(self, spec: ActionSpec, bound: str) -> None:
        self.spec = spec
        self._is_box = spec.kind == "box"
        self._is_discrete = spec.kind == "discrete"
        self._act = make_action_function(spec, bound)
        # The noise of bins follows the choice.
        self._noisy_clip = box_clip(spec, np.float32(0)) if spec.bins else None
        # A one-dimensional box has its shape already.
        flat = len(spec.low) if self._is_box else spec.outputs
        self._shape = None if spec.shape == (flat,) or self._is_discrete else spec.shape

    def act_one(self, raw: Floats, noise: Floats | None = None) -> Any:
        """The action of one environment for float32[outputs]: float32[shape] for a box, int for
        discrete, int64[shape] for multidiscrete, int8[shape] for multibinary; the caller owns it.
        Raises NonFiniteOutput.

        noise: float32[n] for a box of n numbers, added before the bound, or to the values of the
        bins; other spaces take none
        """
        # Summed as Python floats: never overflows for float32, and faster than isfinite().all()
        # below 100 outputs.
        if not isfinite(sum(raw.tolist())):
            raise NonFiniteOutput([0])
        action = self._apply(raw, noise)
        if self._shape is not None:
            return action.reshape(self._shape)
        return int(action) if self._is_discrete else action

    def act(self, raw: Floats, noise: Floats | None = None) -> NDArray[Any]:
        """For float32[B, outputs], an array [B, …] of what act_one returns. Raises NonFiniteOutput
        with the affected rows.
        """
        finite = np.isfinite(raw)
        if not finite.all():
            raise NonFiniteOutput(np.flatnonzero(~finite.all(axis=1)).tolist())
        action = self._apply(raw, noise)
        return action if self._shape is None else action.reshape(len(raw), *self._shape)

    def _apply(self, raw: Floats, noise: Floats | None) -> NDArray[Any]:
        if noise is None or not self._is_box:
            return self._act(raw)
        if self._noisy_clip is None:
            return self._act(raw + noise)
        return self._noisy_clip(self._act(raw) + noise)


def make_action_function(spec: ActionSpec, bound: str) -> ActionFunction:
    """The function from finite float32[..., outputs] to flat actions [..., n] of ``spec``
    (discrete: [...]). Of equal outputs, the lowest position counts.
    """
    if spec.bins:
        return box_bins(spec, bound)
    if spec.kind == "box":
        return box_tanh(spec) if bound == "tanh" else box_clip(spec, middle_of(spec))
    if spec.kind == "discrete":  # position of the largest output, counted from the space's start
        start = spec.starts[0]
        return lambda raw: raw.argmax(axis=-1) + start
    if spec.kind == "multidiscrete":  # the same for each group of outputs, int64[..., groups]
        stops = np.cumsum(spec.sizes).tolist()
        groups = [slice(stop - size, stop) for size, stop in zip(spec.sizes, stops, strict=True)]
        starts = np.array(spec.starts, np.int64)
        return lambda raw: starts + np.stack([raw[..., each].argmax(-1) for each in groups], -1)
    if spec.kind == "vector":
        return vector_in_box(spec) if spec.scale else lambda raw: raw
    if spec.kind == "multibinary":
        return lambda raw: (raw > 0).astype(np.int8)
    raise UsageError(f"there is no policy for an action space of kind {spec.kind!r}")


def box_clip(spec: ActionSpec, middle: Floats | np.float32) -> ActionFunction:
    """Adds ``middle``, and clips to the bounds, float32; an infinite bound has no effect."""
    low, high = np.array(spec.low, np.float32), np.array(spec.high, np.float32)
    if not np.any(middle):
        return lambda raw: np.minimum(np.maximum(raw, low), high)
    return lambda raw: np.minimum(np.maximum(raw + middle, low), high)


def middle_of(spec: ActionSpec) -> Floats:
    """float32[n]: the action of a box for outputs of zero; zero for a number without two bounds."""
    with np.errstate(invalid="ignore"):
        middle = np.array(spec.low) / 2 + np.array(spec.high) / 2
    return np.where(np.isfinite(middle), middle, 0).astype(np.float32)


def box_tanh(spec: ActionSpec) -> ActionFunction:
    """low + (tanh x + 1)/2 · (high - low), float32, never above the upper bound after rounding."""
    low, high = np.array(spec.low, np.float32), np.array(spec.high, np.float32)
    with np.errstate(all="ignore"):
        half = (high - low) * np.float32(0.5)
    if not np.isfinite(half).all():
        raise UsageError("--action-bound tanh needs finite bounds in the action space; use clip")

    def act(raw: Floats) -> NDArray[Any]:
        x = np.tanh(raw)
        x += np.float32(1)
        x *= half
        x += low
        return np.minimum(x, high)

    return act


def box_bins(spec: ActionSpec, bound: str) -> ActionFunction:
    """The value low + (v + 1)/2 · (high - low) of the bin v with the largest output, per number."""
    if bound != "clip":
        raise UsageError(
            f"action_bound is {bound}, but bins stay inside their bounds: leave it at clip"
        )
    low, high = np.array(spec.low)[:, None], np.array(spec.high)[:, None]
    values = (low + (np.array(spec.bins) + 1) / 2 * (high - low)).astype(np.float32)
    rows, shape = np.arange(len(values)), values.shape

    def act(raw: Floats) -> NDArray[Any]:
        chosen: Floats = values[rows, raw.reshape(*raw.shape[:-1], *shape).argmax(axis=-1)]
        return chosen

    return act


# --- the box of an objective's variables


class Margins:
    """Where the search inside a box of variables bends: ``below`` above the lower bounds and
    ``above`` below the upper ones, float64[d] each: a twentieth of the bound or of 1, at most
    half of the box (Hansen, pycma's ``BoxConstraintsLinQuadTransformation``).
    """

    def __init__(self, low: Doubles, high: Doubles) -> None:
        self.low, self.high = low, high
        self.below = np.minimum((high - low) / 2, np.maximum(1, abs(low)) / 20)
        self.above = np.minimum((high - low) / 2, np.maximum(1, abs(high)) / 20)

    def inside(self, free: Doubles) -> Doubles:
        """float64[..., d]: the identity, but a parabola near a bound, whose slope is 0 on it; what
        lies beyond is mirrored, again and again.
        """
        low, high, below, above = self.low, self.high, self.below, self.above
        bottom, top = low - below, high + above
        with np.errstate(all="ignore"):  # of infinite bounds, whose results nobody takes
            period, centre = 2 * (top - bottom), (bottom + top) / 2
            turns = np.floor((free - (centre - period / 2)) / period)
            free = np.where(np.isfinite(period), free - period * turns, free)
            free = np.where(free > top, 2 * top - free, free)
            free = np.where(free < bottom, 2 * bottom - free, free)
            lower = low + np.square(free - bottom) / (4 * below)
            upper = high - np.square(free - top) / (4 * above)
            return self._bend(free, lower, upper)

    def outside(self, inside: Doubles) -> Doubles:
        """What ``inside`` makes ``inside`` of; float64[d]."""
        low, high, below, above = self.low, self.high, self.below, self.above
        with np.errstate(all="ignore"):
            lower = low - below + 2 * np.sqrt(below * (inside - low))
            upper = high + above - 2 * np.sqrt(above * (high - inside))
            return self._bend(inside, lower, upper)

    def _bend(self, where: Doubles, lower: Doubles, upper: Doubles) -> Doubles:
        bent: Doubles = np.where(where > self.high - self.above, upper, where)
        return np.where(where < self.low + self.below, lower, bent)


def vector_in_box(spec: ActionSpec) -> ActionFunction:
    """start + scale · parameters, smoothly kept inside the bounds; float32, never beyond them."""
    low, high = np.array(spec.low), np.array(spec.high)
    margins, scale = Margins(low, high), np.array(spec.scale)
    start = margins.outside(np.array(spec.start))
    least, most = low.astype(np.float32), high.astype(np.float32)
    least = np.where(least < low, np.nextafter(least, np.float32(np.inf)), least)
    most = np.where(most > high, np.nextafter(most, np.float32(-np.inf)), most)

    def act(raw: Floats) -> NDArray[Any]:
        inside = margins.inside(start + scale * raw.astype(np.float64)).astype(np.float32)
        return np.minimum(np.maximum(inside, least), most)

    return act
