"""Conti, Madhavan, Petroski Such, Lehman, Stanley, Clune 2018, Improving exploration in evolution
strategies for deep reinforcement learning via a population of novelty-seeking agents.

https://arxiv.org/abs/1712.06560: NS-ES (algorithm 1), NSR-ES and NSRA-ES (algorithm 3). A
meta-population of members is trained one at a time by the step of ``openai_es``, which maximises
the distance of behaviours from an archive, or that and the reward.

An updated member's behaviour is measured in the next generation's publication, so no worker waits
for it. It enters the archive before that generation's individuals are compared with it. The member
of that generation is drawn earlier, by the updated member's previous behaviour.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.config.run_config import RunConfig
from es_queue.config.schedules import RateFactors
from es_queue.config.settings import setting
from es_queue.errors import UsageError
from es_queue.numerics.arrays import Doubles, Floats, norm
from es_queue.numerics.normals import CHUNK, ChunkGenerator
from es_queue.numerics.statistics import Moments, sum_in_order
from es_queue.slot_plan import MEMBER, uniform
from es_queue.strategies.base import Batch, BehaviourSettings, Draw, Info, State
from es_queue.strategies.openai_es import SharedSigmaGradient
from es_queue.strategies.shaping import utilities

#: How much NSRA's weight of the reward changes, and after how many generations without a better
#: centre it falls (the paper's).
WEIGHT_STEP, STAGNATION_LIMIT = 0.05, 50
#: Numbers of the archive that are compared at once: they stay in the cache.
PIECE = 2**14
#: Chunks of the first members' own normals begin here, beyond all that a noise table of the same
#: seed can have.
FIRST_CHUNK = 2**40


class Novelty(SharedSigmaGradient):
    """g = (1/2n) Σ (u⁺ − u⁻) ε − l2 θ of one member, u by novelty and by reward.

    State, in addition to the active member's ``parameters``: ``members`` float32 [M, size] with
    their optimisers' moments (``member_…``), behaviours and observation statistics; the ``archive``
    float32 [A, b], oldest first; the ``active`` member, and the ``last`` updated one; NSRA's
    ``reward_weight``.
    """

    class Settings(BehaviourSettings, SharedSigmaGradient.Settings):
        novelty = setting(
            "nsr",
            "what is maximised: only novelty (ns), novelty and reward equally (nsr), or a mixture "
            "that moves to novelty while the reward stagnates (nsra)",
            choices=("ns", "nsr", "nsra"),
        )
        members = setting(
            5,
            "number of unperturbed policies (members); the more novel ones are trained more often",
            low=1,
            high=100,
        )
        member_init = setting(
            "near",
            "first parameters of the other members: near the first member's, with a standard "
            "deviation of 0.05, or own, which draws each by --init",
            choices=("near", "own"),
        )
        neighbours = setting(
            10,
            "number of nearest behaviours in the archive; their mean distance is the novelty",
            low=1,
            high=1000,
        )
        archive_size = setting(
            2000,
            "size of the archive of behaviours; the oldest are removed",
            low=1,
            high=100_000,
        )
        behaviour_episodes = setting(
            5,
            "episodes whose mean behaviour is archived for each updated member",
            low=1,
            high=1000,
        )

    name = "novelty"
    wants_behaviour = True

    def __init__(self, config: RunConfig, size: int, pace: RateFactors = RateFactors()) -> None:
        super().__init__(config, size, pace)
        self.member_count = int(config.members)
        self.moments = tuple(self.optimizer.start(1))

    # --- what is published: the active member, the one that was updated last, and under which
    # statistics that one acts

    def start(self, parameters: Floats) -> State:
        state, numbers = super().start(parameters), range(self.member_count)
        for name in self.moments:
            state[f"member_{name}"] = np.stack([state.pop(name)] * self.member_count)
        for name in ("active", "last", "updates", "stagnant"):
            state[name] = np.array(0, np.int64)
        return {
            **state,
            "members": np.stack([self.near_member(parameters, number) for number in numbers]),
            "archive": np.empty((0, 0), np.float32),
            "behaviours": np.empty((0, 0), np.float32),
            "best_fitness": np.empty(0),
            "reward_weight": np.array(1.0),
        }

    def near_member(self, first: Floats, number: int) -> Floats:
        """``first`` + σ ε, with ε from the run's seed and the default σ."""
        if number == 0:
            return first
        maker, chunks = ChunkGenerator(self.config.seed), range(-(-self.size // CHUNK))
        normals = [maker.chunk(FIRST_CHUNK * number + chunk).copy() for chunk in chunks]
        noise = np.concatenate(normals)[: self.size].astype(np.float32)
        return first + np.float32(self.SIGMA) * noise

    def published(self, state: State) -> Floats:
        """The active member and the last updated one; with observation statistics, also the
        latter's mean and deviation.
        """
        vector = np.concatenate([state["parameters"], state["members"][state["last"]]])
        if not self.config.obs_norm or "member_mean" not in state:
            return vector
        statistics = self.member_statistics(state, int(state["last"])).freeze(self.config.obs_clip)
        return np.concatenate([vector, statistics.mean, statistics.std])

    def fits(self, size: int, observations: int) -> bool:
        """With the statistics if observations are normalised."""
        return size == 2 * (self.size + (observations if self.config.obs_norm else 0))

    def digest_input(self, state: State, published: Floats) -> Floats:
        return state["members"].ravel()

    # --- whose behaviour is measured

    @property
    def max_centres(self) -> int:
        return 1 + self.member_count

    def centre_count(self, state: State) -> int:
        """The first generation measures all members, later ones only the last updated member."""
        return 2 if state["updates"] else self.max_centres

    def centre_of(self, published: Floats, slot: int, draw: Draw) -> Floats:
        """Slot 0 is the active member, slot 1 the last updated one; in the first generation, all
        members in order.
        """
        if slot == 0:
            return self.centre(published)
        if slot > 1 and self.config.member_init == "own":
            return draw(slot - 1)
        return self.near_member(published[self.size : 2 * self.size], slot - 1)

    def centre_statistics(self, published: Floats, slot: int) -> tuple[Floats, Floats] | None:
        rest = published[2 * self.size :]
        return (rest[: len(rest) // 2], rest[len(rest) // 2 :]) if slot and len(rest) else None

    # --- observation statistics, each member its own

    def begin(self, state: State, moments: Moments, draw: Draw, behaviour_size: int) -> State:
        """All members begin with the same statistics. Raises UsageError if the first parameters are
        not drawn.
        """
        state = dict(state)
        for name, value in named(moments).items():
            state[name] = np.stack([value] * self.member_count)
        if self.config.member_init != "own":
            return state
        others = [draw(number) for number in range(1, self.member_count)]
        if any(np.array_equal(other, draw(0)) for other in others):
            raise UsageError(
                f"member_init is own, but with the init {self.config.init} all members begin with "
                "the same parameters: use --init normal, or --member-init near"
            )
        return {**state, "members": np.stack([state["parameters"], *others])}

    def member_statistics(self, state: State, member: int) -> Moments:
        """The active member's are the run's, because its own are older."""
        count, mean, m2 = (state[f"member_{name}"][member] for name in ("count", "mean", "m2"))
        return Moments(int(count), mean, m2)

    def exchange_statistics(
        self, before: State, after: State, moments: Moments
    ) -> tuple[State, Moments]:
        """Stores the statistics with the member that played, and returns those of the next one."""
        after, played = dict(after), int(before["active"])
        for name, value in named(moments).items():
            after[name] = with_row(after[name], played, value)
        return after, self.member_statistics(after, int(after["active"]))

    # --- what the master learns

    def tell(self, state: State, batch: Batch) -> tuple[State, Info]:
        """The archive grows, the active member takes a step, and the next one is drawn."""
        played = int(state["active"])
        after = {**state, **self.updated_archive(state, batch)}
        after |= self.updated_reward_weight(state, batch)
        behaviour = batch.behaviour.reshape(-1, batch.behaviour.shape[2])
        away = novelty_of(behaviour, after["archive"], self.config.neighbours)
        away, weight = away.reshape(batch.fitness.shape), float(after["reward_weight"])
        shaped = self.shape_utilities(batch.fitness, away, weight)
        gradient = self.climb(state["parameters"], batch, shaped)
        own = {name: state[f"member_{name}"][played] for name in self.moments}
        step, moments = self.optimizer.step(own, gradient)
        moved = self.moved(state["parameters"], step)
        figures = self.figures({**after, "parameters": moved}, norm(gradient), norm(step))
        active = self.next_member(after, int(state["updates"]))
        members = with_row(state["members"], played, moved)
        after |= {"members": members, "parameters": members[active]}
        after |= {"active": np.array(active, np.int64), "last": np.array(played, np.int64)}
        after["updates"] = np.array(state["updates"] + 1)
        for name, value in moments.items():
            after[f"member_{name}"] = with_row(state[f"member_{name}"], played, value)
        known = away[np.isfinite(away)]
        return after, {
            **figures,
            "novelty_mean": float(known.mean()) if len(known) else 0.0,
            "novelty_max": float(known.max(initial=0.0)),
            "archive": float(len(after["archive"])),
            "member": float(played),
            "reward_weight": weight,
        }

    def updated_archive(self, state: State, batch: Batch) -> State:
        """``archive`` and the members' ``behaviours`` with the measured ones; a last column is 1 if
        a member was measured.
        """
        measured = batch.centre_behaviour
        who = [int(state["last"])] if state["updates"] else list(range(self.member_count))
        behaviours = state["behaviours"].copy()
        if not len(behaviours):
            behaviours = np.zeros((self.member_count, measured.shape[1] + 1), np.float32)
        for member, behaviour in zip(who, measured, strict=True):
            if np.isfinite(behaviour).all():
                behaviours[member] = np.append(behaviour, np.float32(1))
        return {
            "archive": extend_archive(state["archive"], measured, self.config.archive_size),
            "behaviours": behaviours,
        }

    def shape_utilities(self, fitness: Doubles, away: Doubles, weight: float) -> Doubles:
        """[S, 2]: centred ranks of novelty, of both, or of both with ``weight`` for the reward."""
        novel = utilities("centered-rank", away)
        share = {"ns": 0.0, "nsr": 0.5, "nsra": weight}[self.config.novelty]
        if share == 0:
            return novel
        return share * utilities("centered-rank", fitness) + (1 - share) * novel

    def updated_reward_weight(self, state: State, batch: Batch) -> State:
        """After the measured centres' fitness (algorithm 3): higher if it is the best so far, lower
        after long stagnation.
        """
        weight, best = float(state["reward_weight"]), state["best_fitness"]
        stagnant = int(state["stagnant"]) + 1
        values = batch.centre_fitness[np.isfinite(batch.centre_fitness)]
        if len(values) and (not len(best) or values.max() > best[0]):
            weight, best, stagnant = min(1.0, weight + WEIGHT_STEP), values.max(keepdims=True), 0
        if stagnant >= STAGNATION_LIMIT:
            weight, stagnant = max(0.0, weight - WEIGHT_STEP), 0
        return {
            "reward_weight": np.array(weight),
            "best_fitness": np.array(best, np.float64),
            "stagnant": np.array(stagnant, np.int64),
        }

    def next_member(self, state: State, number: int) -> int:
        """Drawn with probability novelty_i / Σ (equation 2); an unmeasured member counts as the
        most novel.
        """
        behaviours, seen = state["behaviours"][:, :-1], state["behaviours"][:, -1] > 0
        away = novelty_of(behaviours, state["archive"], self.config.neighbours)
        away = np.where(seen, away, away[seen].max(initial=0.0))
        return draw_index(away, uniform(self.config.seed, MEMBER, number))


def named(moments: Moments) -> State:
    count = np.array(moments.count, np.int64)
    return {"member_count": count, "member_mean": moments.mean, "member_m2": moments.m2}


def with_row(rows: NDArray[Any], row: int, value: Any) -> NDArray[Any]:
    changed = rows.copy()
    changed[row] = value
    return changed


def novelty_of(behaviours: Floats, archive: Floats, neighbours: int) -> Doubles:
    """Mean distance, float64 [n], of each of ``behaviours`` [n, b] to its nearest ``neighbours`` in
    ``archive`` [A, b]; 0 for an empty archive, NaN for a behaviour that is not finite. Sums have a
    fixed order.
    """
    # At least two rows a piece: numpy sums a single column in another order.
    count = max(1, min(len(archive) // 2, archive.size // PIECE))
    pieces = [np.ascontiguousarray(some.T, np.float64) for some in np.array_split(archive, count)]
    found = np.zeros(len(behaviours))
    for row, behaviour in enumerate(behaviours.astype(np.float64)):
        if not np.isfinite(behaviour).all():
            found[row] = np.nan
        elif len(archive):
            column = behaviour[:, np.newaxis]
            squares = np.concatenate(
                [np.add.reduce(np.square(piece - column), axis=0) for piece in pieces]
            )
            if neighbours < len(squares):
                squares = np.partition(squares, neighbours - 1)[:neighbours]
            nearest = np.sqrt(np.sort(squares)).tolist()
            found[row] = sum_in_order(nearest) / len(nearest)
    return found


def extend_archive(archive: Floats, measured: Floats, most: int) -> Floats:
    """``archive`` [A, b] with the finite rows of ``measured`` [k, b], without the oldest beyond
    ``most``.
    """
    fresh = measured[np.isfinite(measured).all(axis=1)]
    return np.concatenate([archive, fresh])[-most:] if len(archive) else fresh[-most:]


def draw_index(weights: Doubles, chance: float) -> int:
    """Index that ``chance``, uniform in [0, 1), selects with probabilities proportional to the
    weights; equal ones if all are 0.
    """
    shares = weights if np.any(weights > 0) else np.ones(len(weights))
    reached = np.add.accumulate(shares)
    place = int(np.searchsorted(reached, chance * reached[-1], side="right"))
    # The product may have been rounded up to the sum.
    return place if place < len(shares) else int(np.flatnonzero(shares)[-1])
