"""The ledger of one publication: accept or refuse each answer, with a reason that is counted, and know what is owed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from es_queue.config import RunConfig
from es_queue.errors import DecodeError, EnvironmentFailure
from es_queue.numerics import bytes_digest
from es_queue.plan import BEHAVIOUR, CONFIRMATION, ELITE, EVALUATION, FINAL, evaluation_seeds, plan_for
from es_queue.protocol import messages
from es_queue.protocol.channel import Owed
from es_queue.protocol.messages import Answer, Block, EpisodeMoments, SlotResult
from master.audit import Audit, Verdict
from master.fleet import Fleet, Identity
from master.recoveries import WORKER_DIED, Recoveries

MOST_STEPS = 2**40
LARGEST = float(np.finfo(np.float32).max)
FAILURES = 3
MOST_FAILURES = 10  # of one worker alone, while the others are busy or gone
DEATHS = 10
SUSPECT_DEATHS = 2
STREAMS = {messages.EVAL: EVALUATION, messages.CONFIRM: CONFIRMATION, messages.FINAL: FINAL}

Slot = tuple[str, int]


@dataclass(frozen=True)
class Expected:
    """What an answer for one slot must say, or it is refused."""

    noise_index: int
    seed: int
    individuals: int
    moments: int
    episodes: int = 1
    behaviour: int = 0  # bytes


class Expectations:
    """What each slot of a publication must be answered with; a pure function of the config and the generation.

    bytes, slots: how many the largest honest answer has
    """

    def __init__(
        self, config: RunConfig, generation: int, size: int, individuals: int, observation_size: int, most: dict[str, int], limits: tuple[int, int] = (MOST_STEPS, MOST_STEPS), behaviour: int = 0,
    ) -> None:  # fmt: skip
        """``most``: how many slots each kind may ever have in this publication; ``limits``: steps of an episode in training and in evaluation; ``behaviour``: its floats."""
        self.most, self._limits = most, limits
        self.generation, self.environment = generation, config.task
        self._individuals, self._moment_bytes, self._behaviour = individuals, 8 * observation_size, 4 * behaviour
        self._per_sampled, self._episodes = individuals * config.episodes, config.episodes
        self._plan = plan_for(config, generation, size, individuals).slots(0, max(1, most.get(messages.TRAIN, 0)))
        self._seeds = {
            kind: evaluation_seeds(config, stream, generation, most[kind]) for kind, stream in STREAMS.items() if most.get(kind)
        }
        self._elite_episodes = config.elite_episodes
        self._elite_seed = int(evaluation_seeds(config, ELITE, generation, config.elite_episodes)[0])
        self._measured = int(evaluation_seeds(config, BEHAVIOUR, generation, 1)[0]), 1, 0, config.behaviour_episodes
        self.slots, sampled = min(messages.MAX_BLOCK, max(most.values(), default=1)), int(self._plan.sampled.sum()) * self._per_sampled
        self.bytes = messages.answer_bytes(self.slots, individuals, sampled, observation_size, behaviour)

    def of(self, kind: str, slot: int) -> Expected | None:
        """None for a slot that this publication can never have."""
        if slot >= self.most.get(kind, 0):
            return None
        if kind == messages.TRAIN:
            sampled = self._per_sampled if self._plan.sampled[slot] else 0
            return Expected(int(self._plan.noise_indices[slot]), int(self._plan.seeds[slot, 0, 0]), self._individuals, sampled, self._episodes, self._individuals * self._behaviour)
        if kind == messages.CENTRE:  # the first under training's own seeds, the others to see how they behave
            return Expected(-1, *(self._measured if slot else (int(self._plan.seeds[0, 0, 0]), 1, 0, self._episodes)), self._behaviour)
        if kind == messages.ELITE:  # the last of them is the centre
            index = -1 if slot == self.most[messages.TRAIN] else int(self._plan.noise_indices[slot])
            return Expected(index, self._elite_seed, 1, 0, self._elite_episodes)
        return Expected(-1, int(self._seeds[kind][slot]), 1, 0)

    def named(self, kind: str, slot: int) -> str:
        """A slot in words: what a person needs to play its first episode again."""
        expected = self.of(kind, slot)
        seed = "" if expected is None else f", environment seed {expected.seed}"
        return f"{kind} slot {slot} (generation {self.generation} of {self.environment}{seed})"

    def accepts(self, kind: str, result: SlotResult) -> str:
        """Empty, or why the result is refused."""
        expected = self.of(kind, result.slot)
        if expected is None:
            return "unknown-slot"
        if (result.noise_index, result.seed) != (expected.noise_index, expected.seed):
            return "wrong-index"
        if (len(result.fitness), len(result.moments), len(result.behaviour)) != (expected.individuals, expected.moments, expected.behaviour):
            return "wrong-shape"
        if any(len(one.mean) != self._moment_bytes for one in result.moments):
            return "wrong-shape"
        if not _plausible(result, expected.episodes, self._limits[kind not in messages.TRAINED]):
            return "wrong-length"
        return "" if _observable(result.moments) else "wrong-moments"


def _observable(moments: tuple[EpisodeMoments, ...]) -> bool:
    """Whether float32 observations can have these moments: the statistics are float32 again when they are published."""
    for one in moments:
        mean, m2 = np.frombuffer(one.mean, "<f8"), np.frombuffer(one.m2, "<f8")
        if one.count and (np.abs(mean).max(initial=0.0) > LARGEST or np.abs(m2).max(initial=0.0) > one.count * LARGEST**2):
            return False
    return True


def _plausible(result: SlotResult, episodes: int, limit: int) -> bool:
    """Whether each individual can have played so many episodes: a step or more in each, at most ``limit``, and observations one more than steps."""
    each = len(result.moments) // len(result.steps)
    observed = [sum(one.count for one in result.moments[at * each : (at + 1) * each]) for at in range(len(result.steps))]
    return (
        episodes <= min(result.steps)
        and max(result.steps) <= episodes * limit
        and max(*result.at_limit, *result.cut) <= episodes
        and all(count <= steps + episodes for count, steps in zip(observed, result.steps, strict=True))
    )


class Ledger:
    """Truth (rule 1): which slots of the open publication have no accepted answer.

    keep: older publications that are open still; none but in the asynchronous schedule
    """

    keep: tuple[str, ...] = ()

    def __init__(self, publication: str, expectations: Expectations, wanted: dict[str, int]) -> None:
        """``wanted``: how many slots of each kind the publication closes on; ``want`` may raise it."""
        self.publication = publication
        self.expectations = expectations
        self.wanted = dict(wanted)
        self._chosen: dict[str, tuple[int, ...]] = {}
        self.results: dict[str, dict[int, SlotResult]] = {kind: {} for kind in messages.KINDS}
        self.hopeless: set[Slot] = set()
        self.refused: Counter[str] = Counter()
        self.reissued = 0
        self.recovered = 0
        self.lost_steps = 0
        self.last_reason = ""
        self.contributors: set[str] = set()
        self.needs_reconcile = False
        self.recoveries = Recoveries()
        self.fleet: Fleet | None = None
        self.guarded = False  # whether it matters who answers: with --audit, --strict or somebody in quarantine
        self.audit: Audit | None = None
        self._by: dict[Slot, str] = {}
        self._failures: dict[Slot, Counter[str]] = {}
        self._reports: set[str] = set()
        self._deaths: Counter[Slot] = Counter()
        self._seconds: dict[str, tuple[float, int]] = {}

    # --- what comes in

    def accept(self, payload: bytes, live: int = 1) -> bool:
        """Take an entry of the results stream; False when nothing in it counted (the entry can go)."""
        try:
            answer = Answer.decode(payload, self.expectations.bytes, self.expectations.slots)
        except DecodeError:
            self.refused["undecodable"] += 1
            return False
        if answer.publication != self.publication:
            return self._of_another(answer)
        if self._strange(answer):
            return False
        taken = [self._take(answer, result) for result in answer.results]
        noted = self._reported(answer, payload, live) if answer.failures else []
        self._credit(answer, any(taken))
        return any(taken) or any(noted)

    def _of_another(self, answer: Answer) -> bool:
        """An answer of another publication."""
        self.refused["wrong-publication"] += 1
        return False

    def _strange(self, answer: Answer) -> bool:
        """Whether nothing of it counts because of who sent it."""
        stranger = self.fleet.refusal(answer.worker) if self.fleet is not None and self.guarded else ""
        if stranger:
            self.refused[stranger] += max(1, len(answer.results) + len(answer.failures))
        return bool(stranger)

    def _credit(self, answer: Answer, taken: bool) -> None:
        """Who worked, and how long, where something counted."""
        if taken:
            self.contributors.add(answer.worker)
            seconds, slots = self._seconds.get(answer.kind, (0.0, 0))
            self._seconds[answer.kind] = (seconds + answer.seconds, slots + len(answer.results))

    def _reported(self, answer: Answer, payload: bytes, live: int) -> list[bool]:
        """Failures, each once: an answer may be sent twice, and the stream be read twice. Only what counted is remembered."""
        mark = bytes_digest(payload)
        if mark in self._reports:
            self.refused["duplicate"] += len(answer.failures)
            return []
        noted = [self._fail((answer.kind, slot), answer.worker, reason, live) for slot, reason in answer.failures]
        if any(noted):
            self._reports.add(mark)
        return noted

    def _take(self, answer: Answer, result: SlotResult) -> bool:
        refusal = self.expectations.accepts(answer.kind, result)
        former = self.results[answer.kind].get(result.slot)
        if not refusal and former is not None:
            asked = self.audit is not None and (answer.kind, result.slot) in self.audit.open
            refusal = "conflict" if former != result else "audit" if asked else "duplicate"
            self.lost_steps += 0 if asked else sum(result.steps)
            self._compare((answer.kind, result.slot), answer.worker, result, former)
        if refusal:
            self.refused[refusal] += 1
            return False
        self.results[answer.kind][result.slot] = result
        self.hopeless.discard((answer.kind, result.slot))
        self.recoveries.answered((answer.kind, result.slot))
        if self.audit is not None:
            self._by[(answer.kind, result.slot)] = answer.worker
            self.audit.taken((answer.kind, result.slot), answer.worker, result)
            self.needs_reconcile = self.needs_reconcile or (answer.kind, result.slot) in self.audit.open
        return True

    def _compare(self, slot: Slot, worker: str, result: SlotResult, former: SlotResult) -> None:
        """Somebody has played an answered slot again, because it was asked for or because it was overdue."""
        if self.audit is None or slot not in self._by:
            return
        verdict = self.audit.heard(slot, worker, result, self._by[slot], former)
        self.needs_reconcile = self.needs_reconcile or slot in self.audit.open
        if verdict is not None and verdict.wrong:
            self._by[slot] = worker
            self._judge(verdict, self.audit)

    def _judge(self, verdict: Verdict, audit: Audit) -> None:
        """The result of those who agree stands; of whoever stands alone nothing counts but what somebody confirmed."""
        self.results[verdict.slot[0]][verdict.slot[1]] = verdict.result
        for wrong in sorted(verdict.wrong - audit.fleet.quarantined):
            audit.fleet.quarantine(wrong)
            gone = [slot for slot, worker in self._by.items() if slot != verdict.slot and self._is(worker, wrong, audit) and wrong not in audit.confirmed.get(slot, ())]
            for slot in gone:
                self.withdraw(slot)
            self._unreport(wrong)
            audit.forget(wrong)
            audit.note(
                f"audit: {wrong} gave another result for {self.expectations.named(*verdict.slot)} than {' and '.join(map(str, sorted(verdict.right)))}: "
                f"it is in quarantine, and what else it answered in this generation ({len(gone)} slots) is evaluated again; see to that host's memory, packages and versions"
            )
        self.needs_reconcile = True

    def _is(self, worker: str, identity: Identity, audit: Audit) -> bool:
        member = audit.fleet.member(worker)
        return member is not None and member.identity == identity

    def withdraw(self, slot: Slot) -> None:
        """As if nobody had answered it."""
        self.results[slot[0]].pop(slot[1], None)
        self._by.pop(slot, None)
        if self.audit is not None:
            self.audit.open.pop(slot, None)

    def _unreport(self, wrong: Identity) -> None:
        """What it reported as failed may not have failed."""
        for slot, reports in self._failures.items():
            reports.pop(str(wrong), None)
            if reports.total() < FAILURES:
                self.hopeless.discard(slot)

    def _fail(self, slot: Slot, worker: str, reason: str, live: int) -> bool:
        """A reported failure (rule 12); False when it is of no account. The third, by two workers where there are two, decides; in any case the tenth."""
        if self.expectations.of(*slot) is None:
            self.refused["unknown-slot"] += 1
            return False
        if slot[1] in self.results[slot[0]]:
            self.refused["late-failure"] += 1
            if self.audit is not None:
                self.audit.in_vain(slot)
            return False
        reporter = self._reporter(worker)
        if not reporter:
            self.refused["unknown-worker"] += 1
            return False
        reports = self._failures.setdefault(slot, Counter())
        reports[reporter] += 1
        # At once, but not for ever: a worker that fails here again and again waits for the next second, and for another worker.
        self.needs_reconcile = self.needs_reconcile or reports[reporter] <= FAILURES
        if reports.total() >= FAILURES and (live < 2 or len(reports) >= 2 or reports.total() >= MOST_FAILURES):
            self._give_up(slot, reports.total(), reason)
        return True

    def _reporter(self, worker: str) -> str:
        """Who a worker is over all its seats, by whatever id it reports; empty for one that nobody has heard of."""
        if self.fleet is None:
            return worker
        identity = self.fleet.identity(worker)
        return "" if identity is None else str(identity)

    def _give_up(self, slot: Slot, times: int, reason: str) -> None:
        """What is a pure function of the slot counts as the worst; anything else stops the run."""
        named = self.expectations.named(*slot)
        if reason.startswith(messages.HOST_FAILURE):
            raise EnvironmentFailure(f"{named} failed {times} times for want of something on the hosts: {reason.removeprefix(messages.HOST_FAILURE)}")
        if slot[0] not in messages.TRAINED:
            raise EnvironmentFailure(f"{named} failed {times} times, and an evaluation has no worst: {reason}")
        self.hopeless.add(slot)
        self.last_reason = f"{named}: {reason}"
        failed = sum(kind == messages.TRAIN for kind, _ in self.hopeless)
        if slot[0] == messages.TRAIN and failed >= self.wanted.get(messages.TRAIN, 0) and not self.results[messages.TRAIN]:
            raise EnvironmentFailure(f"every episode of a generation failed; the last was {self.last_reason}")

    def died(self, blocks: tuple[Block, ...]) -> None:
        """A worker died while it held these; the first was being worked on."""
        if not blocks:
            return
        self.recovered += 1
        if blocks[0].publication != self.publication:  # a copy was answered, and the generation closed, before it was missed
            self.recoveries.note(WORKER_DIED, 0.0)
            return
        self.recoveries.begin(WORKER_DIED, (slot for block in blocks for slot in self.missing_of(block)))
        for slot in range(blocks[0].start, blocks[0].stop):
            if slot not in self.results[blocks[0].kind]:
                self._deaths[(blocks[0].kind, slot)] += 1
                if self._deaths[(blocks[0].kind, slot)] >= DEATHS:
                    raise EnvironmentFailure(
                        f"{DEATHS} workers died while they played {self.expectations.named(blocks[0].kind, slot)}: it may end or block its process, "
                        "or need more memory than the hosts have; the workers' terminals say how they ended"
                    )

    def missing_of(self, block: Block) -> list[Slot]:
        """The slots of a block without an answer."""
        return [(block.kind, slot) for slot in range(block.start, block.stop) if not self.has(block.kind, slot, slot + 1)]

    def remember_deaths(self, deaths: dict[Slot, int]) -> None:
        """What Redis has counted of this publication: under a former master, or in a reply that was lost."""
        for slot, count in deaths.items():
            self._deaths[slot] = max(self._deaths[slot], count)

    # --- what is owed

    def want(self, kind: str, count: int) -> None:
        """The publication closes on ``count`` slots of a kind."""
        self.wanted[kind] = count

    def choose(self, kind: str, slots: Sequence[int]) -> bool:
        """The publication closes on these slots of a kind, ascending; False where it did so already."""
        if self._chosen.get(kind, ()) == tuple(slots):
            return False
        self._chosen[kind], self.wanted[kind] = tuple(slots), len(slots)
        return True

    def _slots(self, kind: str) -> Sequence[int]:
        return self._chosen.get(kind, range(self.wanted.get(kind, 0)))

    def unanswered(self) -> list[tuple[str, int, int]]:
        """(kind, start, stop) of wanted slots without an answer."""
        return [one for kind in self.wanted for one in ranges(self._missing(kind), kind)]

    def _missing(self, kind: str) -> Iterator[int]:
        have, again = self.results[kind], self.audit.open if self.audit is not None else {}
        return (slot for slot in self._slots(kind) if (slot not in have and (kind, slot) not in self.hopeless) or (kind, slot) in again)

    def complete(self) -> bool:
        return not any(True for kind in self.wanted for _ in self._missing(kind))

    def owed(self, block: int, grace: bool, give_way: Sequence[str], dismissed: Sequence[str] = ()) -> Owed:
        suspect = {slot for slot, count in self._deaths.items() if count >= SUSPECT_DEATHS} | set(self._failures)
        return Owed(self.publication, self.unanswered(), block, frozenset(suspect), grace, [*give_way, *dismissed], dismissed)

    def has(self, kind: str, start: int, stop: int) -> bool:
        """Whether every slot of a range is answered, and none of them in question."""
        if self.audit is not None and any((kind, slot) in self.audit.open for slot in range(start, stop)):
            return False
        return all(slot in self.results[kind] or (kind, slot) in self.hopeless for slot in range(start, stop))

    def seconds_per_slot(self, kind: str) -> float | None:
        """Mean wall seconds that a worker needed for a slot of this kind, None before the first answer."""
        seconds, slots = self._seconds.get(kind, (0.0, 0))
        return seconds / slots if slots else None

    def answered(self) -> tuple[int, int]:
        """(slots answered, slots wanted)."""
        total = sum(self.wanted.values())
        return total - sum(stop - start for _, start, stop in self.unanswered()), total

    def ordered(self, kind: str) -> list[SlotResult | None]:
        """Results of a kind in slot order; None for a slot that failed everywhere."""
        return [self.results[kind].get(slot) for slot in self._slots(kind)]


def ranges(slots: Iterator[int], kind: str) -> list[tuple[str, int, int]]:
    """Ascending slots as (kind, start, stop)."""
    found: list[tuple[str, int, int]] = []
    for slot in slots:
        if found and found[-1][2] == slot:
            found[-1] = (kind, found[-1][1], slot + 1)
        else:
            found.append((kind, slot, slot + 1))
    return found
