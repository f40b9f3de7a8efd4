"""Facts about an environment's spaces that a policy needs: plain data, storable as JSON, without
numpy.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from es_queue.environments.observation_layout import ObservationTree


@dataclass(frozen=True)
class ActionSpec:
    """An action space.

    kind:   "box", "discrete", "multidiscrete", "multibinary", or "vector" for the whole vector of
    parameters
    shape:  shape of the action that the environment takes ("discrete": empty)
    low, high: bounds of a box, flattened in C order (empty otherwise; infinite bounds allowed)
    sizes:  number of choices: one entry for "discrete", one per group for "multidiscrete", one
    entry (number of bits) for "multibinary"
    starts: the smallest value of each choice, same length as ``sizes`` (zeros for "multibinary")
    bins:   values from -1 (low) to 1 (high) that each number of a box can take; empty for any value
    """

    kind: str
    shape: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    sizes: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    bins: tuple[float, ...] = ()

    @property
    def outputs(self) -> int:
        if self.kind == "vector":
            return self.shape[0]
        return len(self.low) * (len(self.bins) or 1) if self.kind == "box" else sum(self.sizes)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ActionSpec:
        names = ("shape", "low", "high", "sizes", "starts", "bins")
        return cls(data["kind"], **{name: tuple(data[name]) for name in names})


@dataclass(frozen=True)
class EnvironmentSpec:
    """Facts about an environment.

    observation_size: length of the flat float32 observation (a discrete observation is one-hot)
    step_limit:       the environment's own limit in steps, None if it has none
    reward_threshold: the registered return at which the task counts as solved
    highest_reward:   the largest reward of one step, if the environment declares it
    backend:          "lean", "envpool", "stock", "gym", or "any" if each host decides; never "auto"
    clean_reset:      whether one object can play many episodes that do not depend on each other
    behaviour:        the behaviour that is compared, and its length; empty and 0 for none
    lives:            lives at the start of an episode; 0 if there are none, or the number is
    unknown
    note:             a sentence for the user who starts a run; empty for none
    observation_shape: shape of the observation array before it was flattened in C order, () for a
    vector or no array
    observation:      the parts of Dict, Tuple and MultiDiscrete observations; None for others
    discrete_start:   smallest value of a discrete observation space, None if observations are
    arrays
    """

    id: str
    observation_size: int
    action: ActionSpec
    step_limit: int | None
    reward_threshold: float | None
    highest_reward: float | None
    backend: str
    clean_reset: bool
    discrete_start: int | None = None
    observation_shape: tuple[int, ...] = ()
    behaviour: str = ""
    behaviour_size: int = 0
    lives: int = 0
    note: str = ""
    observation: ObservationTree | None = None

    @property
    def observation_parts(self) -> tuple[tuple[str, int, int], ...]:
        """(name, start, size) of each part of the flat observation; a single one without a name if
        it has no parts.
        """
        # start-up: numpy, which a command line is read without
        from es_queue.environments.observation_layout import named_parts

        if self.observation is None:
            return (("", 0, self.observation_size),)
        return named_parts(self.observation)
