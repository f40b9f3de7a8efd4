"""What a generation of a model's run publishes: a coefficient for each slot of the one before.

Salimans et al. 2017 (https://arxiv.org/abs/1703.03864, section 2.1) send only scores and seeds;
Qiu et al. 2025 (https://arxiv.org/abs/2509.24372) train all weights of language models so.

A publication is the log of updates since the newest snapshot, the newest first, as rows of float32.
The update of generation g turns the weights of generation g - 1 into those of g. Each has the
digest of the one before, so equal digests mean equal updates since the beginning. Needs no torch:
the master holds no weights.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.config.schedules import RateFactors
from es_queue.config.settings import setting, short
from es_queue.environments.interface import ActionSpec, EnvironmentSpec
from es_queue.errors import UsageError
from es_queue.numerics.arrays import Doubles, Floats, norm
from es_queue.numerics.fingerprint import bytes_digest
from es_queue.strategies.base import Batch, Info, State
from es_queue.strategies.gradient import GradientStrategy, StepSettings
from es_queue.strategies.optimizers import OptimizerSettings
from es_queue.strategies.shaping import ShapingSettings, utilities
from es_queue.text import parse_whole

#: Numbers of a row before its coefficients, and before the number of these.
HEAD = 16


class Update(NamedTuple):
    """A row of the log.

    plan: number of the publication whose slots the coefficients are of
    snapshot: newest generation with a snapshot, -1 for none; check: its ``weights_check``, below
    2^48
    rate: of the step; decay: share of the weights, or of their way from the first ones, that it
    removes; parent: digest of the update before, in hexadecimal
    coefficients: float32 [S]; empty for weights that no update leads to: those of generation 0, and
    those of the final evaluation
    best: generation of the best evaluated weights, -1 for none; no part of the digest, because it
    changes no weights
    """

    generation: int
    plan: int
    snapshot: int
    check: int
    rate: float
    decay: float
    parent: str
    coefficients: Floats
    best: int = -1

    def to_row(self, width: int) -> Floats:
        """float32 [width]. Whole numbers below 2^24 are exact, larger ones are cut into pieces."""
        row = np.zeros(width, np.float32)
        row[:3] = self.generation, self.plan, self.snapshot
        row[3:6] = [self.check >> shift & 0xFFFF for shift in (0, 16, 32)]
        row[6:8] = self.rate, self.decay
        row[8:HEAD] = np.frombuffer(bytes.fromhex(self.parent), "<u2")
        row[HEAD] = len(self.coefficients)
        row[HEAD + 1 : HEAD + 1 + len(self.coefficients)] = self.coefficients
        row[-1] = self.best
        return row

    @classmethod
    def of(cls, row: Floats) -> Update:
        """The update in a row, or in its first ``HEAD`` numbers."""
        pieces, is_whole = row[3:6].astype(np.int64).tolist(), len(row) > HEAD
        count = int(row[HEAD]) if is_whole else 0
        return cls(
            generation=int(row[0]),
            plan=int(row[1]),
            snapshot=int(row[2]),
            check=pieces[0] | pieces[1] << 16 | pieces[2] << 32,
            rate=float(row[6]),
            decay=float(row[7]),
            parent=row[8:HEAD].astype("<u2").tobytes().hex(),
            coefficients=row[HEAD + 1 : HEAD + 1 + count],
            best=int(row[-1]) if is_whole else -1,
        )


def row_digest(row: Floats) -> str:
    return bytes_digest(row[:-1].astype("<f4").tobytes())


def parse_perturbation(text: str) -> int:
    """The rank R of ``rank:R``; 0 for ``full``. Raises UsageError."""
    if text == "full":
        return 0
    kind, _, rank = text.partition(":")
    try:
        if kind == "rank":
            return parse_whole(rank, 1)
    except ValueError:
        pass
    raise UsageError(f"perturbation is {short(text)}: use full, or rank:R such as rank:1")


def model_spec(name: str) -> EnvironmentSpec:
    """A model as an objective whose vector is the head of a row."""
    return EnvironmentSpec(
        id=name,
        observation_size=1,
        action=ActionSpec("vector", shape=(HEAD,)),
        step_limit=1,
        reward_threshold=None,
        highest_reward=None,
        backend="stock",
    )


class ModelES(GradientStrategy):
    """The gradient g = (1/2n) Σ (u⁺ − u⁻) ε of utilities over n pairs, for SGD or ClipUp, as in
    openai_es; the workers add up the sum.

    Its state has ``parameters``, the head of the newest row, and the ``log`` float32 [L, width].
    """

    class Settings(ShapingSettings, OptimizerSettings, StepSettings):
        perturbation = setting(
            "full",
            "noise of a matrix: full draws each element; rank:R adds the product of two matrices "
            "of R columns beside the layer's own, which needs neither the noise nor a copy of it",
            group="model",
            form=parse_perturbation,
            metavar="FORM",
        )
        anchor = setting(
            False,
            "weight_decay moves the weights towards the first ones, against forgetting, instead of "
            "towards zero",
        )
        snapshots = setting(
            "",
            "folder or fsspec URL that all workers can reach; each run writes snapshots of its "
            "weights to a folder of its name there, with each evaluation; none is the run's own "
            "folder",
            metavar="URL",
        )

    optimizers = ("sgd", "clipup")
    SIGMA = 0.01
    LEARNING_RATES: ClassVar[dict[str, float]] = {"sgd": 0.1, "clipup": 0.1}

    def __init__(self, config: RunConfig, size: int, pace: RateFactors = RateFactors()) -> None:
        super().__init__(config, size, pace)
        self.width = HEAD + 2 + config.population // 2

    @classmethod
    def check(cls, config: RunConfig) -> None:
        if config.population % 2:
            raise config.refused("population", "a model is perturbed in pairs: use an even number")
        cls.check_own(config)
        if config.anchor and not config.weight_decay:
            raise config.refused("anchor", "weight_decay is 0: set it, or leave --anchor out")

    def start(self, parameters: Floats) -> State:
        nothing = np.empty(0, np.float32)
        first = Update(0, -1, -1, 0, 0.0, 0.0, bytes(16).hex(), nothing)
        return self._state(first.to_row(self.width)[np.newaxis])

    @staticmethod
    def _state(log: Floats) -> State:
        return {"parameters": log[0, :HEAD].copy(), "log": log}

    def published(self, state: State) -> Floats:
        return state["log"].ravel()

    def digest_input(self, state: State, published: Floats) -> Floats:
        return self.checked_part(published)

    def checked_part(self, published: Floats) -> Floats:
        """The part of the newest row that has a digest, which is the next row's parent."""
        return published[: self.width - 1]

    def fits(self, size: int, observations: int) -> bool:
        return size > 0 and size % self.width == 0

    def elite_slot_count(self, state: State, generation: int) -> int:
        """One slot writes a snapshot, in each generation with an evaluation. Its fitness is the
        snapshot's ``weights_check``.
        """
        return int(generation % self.config.eval_every == 0)

    @property
    def handles_all_failed(self) -> bool:
        return True  # decay also applies then

    def tell(self, state: State, batch: Batch) -> tuple[State, Info]:
        shaped: Doubles = utilities(self.config.shaping, batch.fitness)
        weights = ((shaped[:, 0] - shaped[:, 1]) / shaped.size).astype(np.float32)
        log = state["log"]
        before = Update.of(log[0])
        update = before._replace(
            generation=before.generation + 1,
            plan=int(batch.slot_plans[0, 0]),
            best=batch.best,
            rate=self.step_rate,
            decay=self.config.weight_decay * self.pace.decay,
            parent=row_digest(log[0]),
            coefficients=weights,
        )
        if len(batch.elite_fitness):
            update = update._replace(snapshot=before.generation, check=int(batch.elite_fitness[0]))
        older = log[log[:, 0] > update.snapshot]
        after = self._state(np.vstack([update.to_row(self.width), older]))
        length = norm(weights)
        figures = {"gradient_norm": length, "sigma": self.sigma({}), "no_step": float(length == 0)}
        return after, figures
