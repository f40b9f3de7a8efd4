"""The slot table: what each slot of a publication plays, and what came back.

One structured array with a row per slot. The plan columns are a pure function of the settings, the
generation and the spans, which master and workers both call. Results fill the other columns: on the
wire they are the same bytes as in the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from es_queue.config.run_config import RunConfig
from es_queue.config.schedules import ASYNC
from es_queue.environments.interface import EnvironmentSpec
from es_queue.errors import DecodeError
from es_queue.numerics.arrays import Floats, Integers, Mask
from es_queue.numerics.statistics import LARGEST_FLOAT32, Moments
from es_queue.protocol.messages import (
    CENTRE,
    CONFIRM,
    ELITE,
    EVAL,
    FINAL,
    KINDS,
    MOST_RETURN,
    TRAIN,
)
from es_queue.slot_plan import (
    BEHAVIOUR,
    CONFIRMATION,
    ELITE_SEEDS,
    EVALUATION,
    FINAL_SEEDS,
    SlotPlan,
    evaluation_seeds,
    max_slots,
    plan_slots,
    resolve_seed_sharing,
)
from es_queue.strategies.base import Strategy

#: The stream of environment seeds of each kind of evaluation.
EVALUATION_STREAMS = {EVAL: EVALUATION, CONFIRM: CONFIRMATION, FINAL: FINAL_SEEDS}
#: Kinds that are played under training's rules.
TRAINED = (TRAIN, CENTRE, ELITE)

#: ``state`` of a row.
OWED, ANSWERED, FAILED = range(3)
#: ``failure`` of a result: none; the episode raised; the host lacks something (disk, memory); the
#: user's own strategy raised.
NO_FAILURE, EPISODE_FAILED, HOST_FAILED, STRATEGY_FAILED = range(4)
#: A slot has failed with its third report (from two workers, if there are two), in any case with
#: its tenth (rule 12).
FAILURES, MOST_FAILURES = 3, 10
MOST_STEPS, MOST_ROWS = 2**40, 2**24
#: Rows whose moments are merged while results are awaited, between two looks for more.
MERGED_AT_ONCE = 512

NO_SPREAD: Floats = np.empty(0, np.float32)

Rows = NDArray[np.intp]  # row numbers of a table
Table = NDArray[Any]  # structured
NO_ROWS: Rows = np.empty(0, np.intp)


class Span(NamedTuple):
    """Slots ``start`` to ``stop - 1`` of a kind: consecutive rows of a table."""

    kind: int
    start: int
    stop: int


@dataclass(frozen=True)
class Shape:
    """individuals: P of a training slot; observation, behaviour, info: how many numbers of each."""

    individuals: int
    observation: int
    behaviour: int
    info: int = 0

    @classmethod
    def of(cls, strategy: Strategy, spec: EnvironmentSpec) -> Shape:
        behaviour = spec.behaviour_size if strategy.wants_behaviour else 0
        return cls(strategy.per_slot, spec.observation_size, behaviour, len(spec.info))

    @cached_property
    def result(self) -> np.dtype[Any]:
        """A row's result, on the wire and in the table.

        worker: ``worker_mark`` of the worker; failure: NO_FAILURE or why the scores are NaN;
        seconds: that the row took; fitness, returns: means over the individual's episodes; steps,
        at_limit, cut: sums over them; behaviour, info: their means, of info without what is NaN
        """
        each = (self.individuals,)
        return np.dtype(
            [
                *(("row", "<i4"), ("worker", "<u4"), ("failure", "u1"), ("seconds", "<f4")),
                *(("fitness", "<f8", each), ("returns", "<f8", each), ("steps", "<i8", each)),
                *(("at_limit", "<i4", each), ("cut", "<i4", each)),
                ("behaviour", "<f4", (self.individuals, self.behaviour)),
                ("info", "<f4", (self.individuals, self.info)),
            ]
        )

    @cached_property
    def moments(self) -> np.dtype[Any]:
        """Observation moments of one episode of a sampled row; count 0: it had an infinite
        observation and is left out.
        """
        d = (self.observation,)
        head = [("row", "<i4"), ("episode", "<i4"), ("count", "<i8")]
        return np.dtype([*head, ("mean", "<f8", d), ("m2", "<f8", d)])

    def table(self, episodes: int) -> np.dtype[Any]:
        """A row of the table: plan, result, and the master's own columns.

        number: of the slot among those of its kind; players: individuals that play; index: of the
        noise, -1 if the slot is not perturbed; seeds: of the environments, -1 beyond the slot's
        episodes; key: of the action noise, if ``noisy``; place: of its first moments, -1 if not
        sampled
        issued, copied: whether it was issued, and again as a straggler; deaths: of workers that
        played it
        arrived: rank among all results of the run, -1 for none; used: the generation that learnt
        from it, -1 for none
        """
        plan = [
            *(("kind", "u1"), ("number", "<i4"), ("players", "u1"), ("index", "<i8")),
            *(("seeds", "<i4", (self.individuals, episodes)), ("key", "<u8"), ("noisy", "?")),
            ("place", "<i8"),
        ]
        own = [("state", "u1"), ("issued", "?"), ("copied", "?"), ("deaths", "u1")]
        return np.dtype([*plan, *self.result.descr, *own, ("arrived", "<i8"), ("used", "<i4")])


@dataclass
class Tally:
    """Results that did not count, by reason, and their steps; conflict: the first two different
    results of one row
    """

    refused: Counter[str] = field(default_factory=Counter)
    lost_steps: int = 0
    conflict: tuple[Any, Any] | None = None

    def refuse(self, reason: str, wrong: Mask) -> Mask:
        """Count the ``wrong`` ones, bool [A], of some results. Returns ``wrong``."""
        if count := int(np.count_nonzero(wrong)):
            self.refused[reason] += count
        return wrong


class Slots:
    """The table [S] of one publication, and the moments [M] of its sampled episodes.

    publication: its name, once it has one; step_limit: of its training episodes; spread:
    ``Strategy.spread`` of its perturbations; tally: what did not count, which several tables share
    info_names: of the columns of ``info``
    identify: the worker with a ``worker_mark``, over all its seats
    needs_look: whether a failed row should be issued again at once; is_held: whether a worker holds
    a block of a replaced publication, or may hold one
    """

    def __init__(
        self,
        config: RunConfig,
        strategy: Strategy,
        spec: EnvironmentSpec,
        generation: int,
        spans: Iterable[Span] = (),
        *,
        publication: str = "",
        step_limit: int = 0,
        spread: Floats = NO_SPREAD,
    ) -> None:
        self.config, self.strategy, self.generation = config, strategy, generation
        self.publication, self.step_limit, self.spread = publication, step_limit, spread
        self.shape, self.spans = Shape.of(strategy, spec), list[Span]()
        self.info_names = spec.info
        self.table: Table = np.empty(0, self.shape.table(most_episodes(config, strategy)))
        self.moments: Table = np.empty(0, self.shape.moments)
        self._rows = dict[int, Rows]()
        self.tally = Tally()
        self.identify: Callable[[int], Hashable] = lambda mark: mark
        self.needs_look, self.is_held = False, True
        self._reports: dict[int, Counter[Hashable]] = {}
        self._reported: set[bytes] = set()
        # What ``merge_early`` began with, the number of its rows, and their sum.
        empty = Moments.empty(self.shape.observation)
        self._merged: tuple[Moments | None, int, Moments] = (None, 0, empty)
        self.add(spans)

    def __len__(self) -> int:
        return len(self.table)

    # --- the plan

    def add(self, spans: Iterable[Span]) -> None:
        """Append planned rows, which are owed from now on."""
        spans, count, places = list(spans), len(self.table), len(self.moments)
        self.spans += spans
        rows = sum(span.stop - span.start for span in spans)
        self.table = _grown(self.table, rows)
        for span in spans:
            more = self.table[count : count + span.stop - span.start]
            more["kind"], more["number"] = span.kind, np.arange(span.start, span.stop)
            more["row"] = count + np.arange(len(more))
            self._rows[span.kind] = np.append(self.rows(span.kind), count + np.arange(len(more)))
            for name in ("fitness", "returns", "behaviour", "info"):
                more[name] = np.nan
            more["players"] = 1
            for name in ("index", "seeds", "place", "arrived", "used"):
                more[name] = -1
            sampled = self._plan(span, more)
            each = self._episodes(more["players"][sampled])
            more["place"][sampled] = places + np.cumsum(each) - each
            places += int(each.sum())
            count += len(more)
        before = len(self.moments)
        self.moments = _grown(self.moments, places - before)
        self.moments["row"][before:] = -1

    def _plan(self, span: Span, rows: Table) -> Mask:
        """Fill the plan columns of new rows [n]; returns bool [n], which of them are sampled."""
        config, generation, (kind, start, stop) = self.config, self.generation, span
        numbers, episodes = rows["number"], config.episodes
        if kind == TRAIN:
            plan = training_plan(config, self.strategy, generation, stop)
            rows["players"], rows["index"] = self.strategy.per_slot, plan.noise_indices[start:stop]
            rows["seeds"][:, :, :episodes] = plan.seeds[start:stop]
            rows["key"], rows["noisy"] = plan.noise_keys[start:stop], True
            return plan.sampled[start:stop]
        if kind not in TRAINED:  # the centre, one episode a slot, under the environment's own rules
            seeds = evaluation_seeds(config, EVALUATION_STREAMS[kind], generation, stop)
            rows["seeds"][:, 0, 0] = seeds[start:]
        elif kind == CENTRE:  # number 0 as slot 0 plays; other centres on fresh seeds
            first, at = training_plan(config, self.strategy, generation, 1), numbers == 0
            rows["seeds"][at, 0, :episodes] = first.seeds[0, 0]
            rows["key"][at], rows["noisy"] = first.noise_keys[0], at
            if not at.all():
                seeds = evaluation_seeds(config, BEHAVIOUR, generation, config.behaviour_episodes)
                rows["seeds"][~at, 0, : len(seeds)] = seeds
        elif not config.model:  # of a model, a snapshot of the weights
            seeds = evaluation_seeds(config, ELITE_SEEDS, generation, config.elite_episodes)
            if config.schedule == ASYNC:  # one episode per slot
                rows["seeds"][:, 0, 0] = seeds[numbers % len(seeds)]
            else:  # training slots again, on the same fresh seeds; after the last one, the centre
                rows["seeds"][:, 0, : len(seeds)] = seeds
                most = max_slots(config, self.strategy.per_slot)
                perturbed = numbers < most
                plan = training_plan(config, self.strategy, generation, min(stop, most))
                rows["index"][perturbed] = plan.noise_indices[numbers[perturbed]]
        return np.zeros(len(rows), np.bool_)

    def _episodes(self, players: NDArray[np.uint8]) -> Integers:
        """int64 [n]: episodes of training rows with so many players."""
        each: Integers = players.astype(np.int64) * self.config.episodes
        return each

    # --- what came back

    def accept(self, results: Table, moments: Table, first: int = 0, workers: int = 2) -> Rows:
        """Write the results [A] that count (``Shape.result``) with their moments [E]
        (``Shape.moments``); returns the rows that they settle.

        The first valid result of a row counts. ``first``: rank of the first among all results of
        the run; ``workers``: how many are present. A slot fails after three reports, from at least
        two workers if there are two, or after ten.
        """
        ranks = first + np.arange(len(results))
        spoilt = self._place_moments(moments)
        table, rows = self.table, results["row"]
        keep = ~self.tally.refuse("unknown-slot", (rows < 0) | (rows >= len(table)))
        results, ranks = results[keep], ranks[keep]
        rows = results["row"].astype(np.intp)
        failed, late = results["failure"] != NO_FAILURE, table["state"][rows] != OWED
        valid = np.zeros(len(rows), np.bool_)
        valid[~failed] = self._valid(results[~failed], spoilt)
        once = _first_of_each(rows, valid & ~late)
        again = results[valid & ~once]
        late |= np.isin(rows, rows[once])
        self.tally.refuse("late-failure", failed & late)
        reported = failed & ~late
        settled = self._report_failures(results[reported], ranks[reported], workers)
        self._write(results[once], ANSWERED, ranks[once])
        self._compare(again)
        return np.concatenate([rows[once], settled])

    def _write(self, results: Table, state: Any, arrived: Any) -> None:
        rows = results["row"].astype(np.intp)
        for name in self.shape.result.names or ():
            self.table[name][rows] = results[name]
        self.table["state"][rows], self.table["arrived"][rows] = state, arrived

    def results(self, rows: Rows | Mask) -> Table:
        """The rows' results as on the wire: their bytes follow each other in the table."""
        result, fields = self.shape.result, self.table.dtype.fields
        assert fields is not None, "the table has columns"
        first = fields["row"][1]
        each = self.table.view(np.uint8).reshape(len(self.table), self.table.itemsize)
        found: Table = each[rows, first : first + result.itemsize].view(result).ravel()
        return found

    def restore(self, results: Table) -> None:
        """Take ``results`` of another table that are owed here. Raises DecodeError."""
        rows = results["row"]
        known = rows[(rows >= 0) & (rows < len(self.table))]
        if len(np.unique(known[self.owed[known]])) < len(rows):
            raise DecodeError("results are of rows that the table has not, or twice")
        scores = np.stack([results["fitness"], results["returns"]])
        if not (np.isnan(scores) | (np.abs(scores) <= MOST_RETURN)).all():
            raise DecodeError("results have impossible returns")
        failed = results["failure"] != NO_FAILURE
        self._write(results, np.where(failed, FAILED, ANSWERED), 0)

    def _compare(self, results: Table) -> None:
        """Results of rows that have one already. Other bits are a sign of a broken host."""
        if not len(results):
            return
        known = self.table[results["row"]]
        # A record that was sent or read twice was played once.
        twice = (known["worker"] == results["worker"]) & (known["seconds"] == results["seconds"])
        self.tally.lost_steps += int(results["steps"][~twice].sum())
        # A row that was learnt from under a former master, or has failed, has no scores to compare.
        same: Mask = (known["arrived"] < 0) | (known["state"] == FAILED)
        bits = [known[name] == results[name] for name in ("fitness", "returns", "steps")]
        same |= np.logical_and.reduce([column.all(1) for column in bits])
        if self.tally.refuse("conflict", ~same).any() and self.tally.conflict is None:
            self.tally.conflict = known[~same][0].copy(), results[~same][0].copy()
        self.tally.refuse("duplicate", same)

    def _valid(self, results: Table, spoilt: Rows) -> Mask:
        """bool [A]: which have finite scores, possible step counts, and all their moments."""
        rows = results["row"].astype(np.intp)
        scores = np.abs(np.stack([results["fitness"], results["returns"]]))
        good = ~self.tally.refuse("wrong-return", ~(scores <= MOST_RETURN).all((0, 2)))
        steps, players = results["steps"], self.table["players"][rows, np.newaxis]
        fewest = np.arange(self.shape.individuals) < players
        short = ((steps < fewest) | (steps > MOST_STEPS)).any(1)
        good &= ~self.tally.refuse("wrong-length", good & short)
        if self.shape.behaviour:
            finite = np.isfinite(results["behaviour"]).all((1, 2))
            good &= ~self.tally.refuse("wrong-shape", good & ~finite)
        lacks = np.isin(rows, spoilt)
        sampled = np.flatnonzero(self.table["place"][rows] >= 0)
        if len(sampled):
            places, each = self._places(rows[sampled])
            present = self.moments["row"][places] >= 0
            starts = np.cumsum(each) - each
            lacks[sampled] |= ~np.logical_and.reduceat(present, starts)
        return good & ~self.tally.refuse("wrong-moments", good & lacks)

    def _place_moments(self, moments: Table) -> Rows:
        """Store the moments of each episode that has none; returns the rows of impossible ones."""
        rows = moments["row"]
        known = moments[(rows >= 0) & (rows < len(self.table)) & (moments["episode"] >= 0)]
        starts = self.table["place"][known["row"]]
        within = known["episode"] < self._episodes(self.table["players"][known["row"]])
        known, starts = known[(starts >= 0) & within], starts[(starts >= 0) & within]
        places = starts + known["episode"]
        known, places = known[::-1], places[::-1]  # of equal places the first one stays
        fresh = self.moments["row"][places] < 0
        known, places = known[fresh], places[fresh]
        finite = np.isfinite(known["mean"]).all(1) & np.isfinite(known["m2"]).all(1)
        with np.errstate(all="ignore"):
            most = known["count"][:, np.newaxis] * float(LARGEST_FLOAT32) ** 2
            possible = (np.abs(known["mean"]) <= LARGEST_FLOAT32) & (known["m2"] >= 0)
            possible &= known["m2"] <= most
        counts = (known["count"] >= 0) & (known["count"] <= MOST_STEPS)
        good = finite & counts & (possible.all(1) | (known["count"] == 0))
        self.moments[places[good]] = known[good]
        spoilt: Rows = known["row"][~good].astype(np.intp)
        return spoilt

    def forget_moments(self, rows: Rows) -> None:
        """What came for these rows, of those that are owed, counts no more."""
        rows = rows[(rows >= 0) & (rows < len(self.table))]
        rows = rows[self.owed[rows] & (self.table["place"][rows] >= 0)]
        self.moments["row"][self._places(rows)[0]] = -1

    def _places(self, rows: Rows) -> tuple[Integers, Integers]:
        """Places of the moments of sampled rows, in order; and how many each row has."""
        each = self._episodes(self.table["players"][rows])
        ends = np.cumsum(each)
        places = np.repeat(self.table["place"][rows] - (ends - each), each)
        return places + np.arange(len(places)), each

    def _report_failures(self, results: Table, ranks: Integers, workers: int) -> Rows:
        """A failed slot is owed again, until enough workers have reported it; returns the rows
        that have failed now. Their scores stay NaN.
        """
        settled: list[int] = []
        for result, rank in zip(results, ranks.tolist(), strict=True):
            row, worker = int(result["row"]), self.identify(int(result["worker"]))
            # The same record again is the same attempt: its reply was lost, or it was read again.
            if row in settled or (data := result.tobytes()) in self._reported:
                continue
            self._reported.add(data)
            reports = self._reports.setdefault(row, Counter())
            reports[worker] += 1
            total = reports.total()
            # One that fails here again and again waits for the next second, and another worker.
            self.needs_look |= reports[worker] <= FAILURES
            if total >= MOST_FAILURES or (total >= FAILURES and (workers < 2 or len(reports) >= 2)):
                self.table["state"][row], self.table["arrived"][row] = FAILED, rank
                self.table["failure"][row] = result["failure"]
                settled.append(row)
        return np.array(settled, np.intp)

    def reports(self, row: int) -> Counter[Hashable]:
        """How often each worker reported a failure of the row."""
        return self._reports.get(row, Counter())

    def suspects(self) -> Mask:
        """bool [S]: rows that are issued singly, because they failed, or ended two workers."""
        suspects: Mask = self.table["deaths"] >= 2
        suspects[list(self._reports)] = True
        return suspects

    # --- questions

    @property
    def owed(self) -> Mask:
        """bool [S]: rows without a result."""
        mask: Mask = self.table["state"] == OWED
        return mask

    def rows(self, *kinds: int) -> Rows:
        """All rows of the kinds, in slot order."""
        parts = [self._rows[kind] for kind in kinds if kind in self._rows]
        return parts[0] if len(parts) == 1 else np.sort(np.concatenate([NO_ROWS, *parts]))

    def is_complete(self, *kinds: int) -> bool:
        """Whether no row (of the kinds) is owed."""
        return not (self.owed[self.rows(*kinds)] if kinds else self.owed).any()

    def fresh(self, kind: int = TRAIN) -> Rows:
        """Rows of a kind with a result that nobody has learnt from, in slot order."""
        done = ~self.owed & (self.table["used"] < 0) & (self.table["arrived"] >= 0)
        rows = self.rows(kind)
        fresh: Rows = rows[done[rows]]
        return fresh

    def shortest_prefix(self, least: int, steps: int) -> Rows:
        """The first training rows, at least ``least`` of them and of ``steps`` steps together, in
        slot order (the batch by steps); all if there are fewer.
        """
        rows = self.rows(TRAIN)
        enough = np.cumsum(self.table["steps"][rows].sum(1)) >= steps
        enough[: max(1, least) - 1] = False
        return rows[: int(enough.argmax()) + 1] if enough.any() else rows

    def answered(self, rows: Rows) -> Rows:
        """Those of the rows that have a result and have not failed."""
        answered: Rows = rows[self.table["state"][rows] == ANSWERED]
        return answered

    def returns(self, *kinds: int) -> list[float]:
        """Return of the first individual of each row of the kinds that did not fail."""
        values: list[float] = self.table["returns"][self.answered(self.rows(*kinds)), 0].tolist()
        return values

    def steps(self, rows: Rows) -> int:
        return int(self.table["steps"][rows].sum())

    def lengths(self, rows: Rows, limit: int) -> Iterable[int]:
        """Steps of each episode of the rows. If an individual plays several, their sum and the
        number of those at the limit are exact.
        """
        rows, each = self.answered(rows), self.config.episodes
        steps, reached = self.table["steps"][rows].ravel(), self.table["at_limit"][rows].ravel()
        if each == 1:
            whole: list[int] = steps.tolist()
            return whole
        return _split_lengths(steps.tolist(), reached.tolist(), each, limit)

    def merge(self, moments: Moments, rows: Rows) -> Moments:
        """``moments`` with those of all sampled episodes of the rows, one by one in this order,
        because another grouping would give other bits.
        """
        began, count, merged = self._merged
        if began is moments and np.array_equal(rows[:count], self.rows(TRAIN)[:count]):
            moments, rows = merged, rows[count:]
        return self._merge(moments, rows)

    def merge_early(self, moments: Moments) -> bool:
        """Merge the next of the training rows that come first and are not owed, so that ``merge``
        has less to do when all have arrived. Returns whether there were any.
        """
        began, count, merged = self._merged
        if began is not moments:
            count, merged = 0, moments
        rows = self.rows(TRAIN)[count : count + MERGED_AT_ONCE]
        owed = self.owed[rows]
        rows = rows[: int(owed.argmax())] if owed.any() else rows
        self._merged = moments, count + len(rows), self._merge(merged, rows)
        return len(rows) > 0

    def _merge(self, moments: Moments, rows: Rows) -> Moments:
        rows = self.answered(rows[self.table["place"][rows] >= 0])
        if not len(rows):
            return moments
        taken = self.moments[self._places(rows)[0]]
        return moments.merge_many(taken["count"].tolist(), taken["mean"], taken["m2"])


def _grown(table: Table, rows: int) -> Table:
    """The table with so many rows of zeros more."""
    return np.concatenate([table, np.zeros(rows, table.dtype)]) if rows else table


def format_slot(slots: Slots, row: int) -> str:
    """A slot in words: what a person needs to play its first episode again."""
    about = slots.table[row]
    # The number of the final episodes' publication is no generation's.
    generation = "" if about["kind"] == FINAL else f"generation {slots.generation} of "
    seed = f"{'environment ' if slots.config.env else ''}seed {about['seeds'][0, 0]}"
    named = f"{KINDS[about['kind']]} slot {about['number']}"
    return f"{named} ({generation}{slots.config.problem}, {seed})"


def worker_mark(worker: str) -> int:
    """A worker's id in 32 bits, as its results have it."""
    return crc32(worker.encode())


def spans_to_bytes(spans: Iterable[Span]) -> bytes:
    """int32 triples, for the header of a publication."""
    return np.array(list(chain.from_iterable(spans)), "<i4").tobytes()


def spans_from_bytes(data: bytes, most: int = MOST_ROWS) -> list[Span]:
    """Raises DecodeError for spans that no publication of at most ``most`` rows has."""
    triples = np.frombuffer(data, "<i4").reshape(-1, 3)
    kinds, starts, stops = triples[:, 0], triples[:, 1], triples[:, 2]
    fits = (kinds >= 0) & (kinds < len(KINDS)) & (starts >= 0) & (stops >= starts) & (stops <= most)
    if not fits.all() or int((stops.astype(np.int64) - starts).sum()) > most:
        raise DecodeError("a publication has impossible slots")
    return [Span(*triple) for triple in triples.tolist()]


def fresh_count(tables: Iterable[Slots]) -> int:
    """Training results of all tables that nobody has learnt from."""
    return sum(len(slots.fresh()) for slots in tables)


def earliest(tables: Sequence[Slots], most: int) -> list[Rows]:
    """For each table its fresh rows among the ``most`` that arrived first in all of them, in slot
    order: a batch of the asynchronous schedule.
    """
    fresh = [slots.fresh() for slots in tables]
    arrived = [slots.table["arrived"][rows] for slots, rows in zip(tables, fresh, strict=True)]
    ordered = np.sort(np.concatenate(arrived))[:most]
    if not len(ordered):
        return [rows[:0] for rows in fresh]
    return [rows[ranks <= ordered[-1]] for rows, ranks in zip(fresh, arrived, strict=True)]


def ranges(rows: Rows, kinds: NDArray[np.uint8]) -> list[tuple[int, int, int]]:
    """(kind, start, stop) of the runs of consecutive row numbers of one kind; kinds: u1 [S]."""
    if not len(rows):
        return []
    cuts = np.flatnonzero((np.diff(rows) > 1) | (kinds[rows[1:]] != kinds[rows[:-1]])) + 1
    starts, stops = rows[np.append(0, cuts)], rows[np.append(cuts, len(rows)) - 1] + 1
    return list(zip(kinds[starts].tolist(), starts.tolist(), stops.tolist(), strict=True))


def _first_of_each(rows: Rows, among: Mask) -> Mask:
    """bool [A]: whether it is the first of its row among some results."""
    first = np.zeros(len(rows), np.bool_)
    numbers = np.flatnonzero(among)
    first[numbers[np.unique(rows[numbers], return_index=True)[1]]] = True
    return first


def most_episodes(config: RunConfig, strategy: Strategy) -> int:
    """The most episodes that an individual of any kind of slot plays."""
    elites = config.elite_episodes if strategy.reevaluates else 1
    centres = config.behaviour_episodes if strategy.max_centres > 1 else 1
    return max(config.episodes, elites, centres)


def training_plan(config: RunConfig, strategy: Strategy, generation: int, stop: int) -> SlotPlan:
    """The plan of the first training slots, at least ``stop`` of them."""
    count = max(stop, config.population // strategy.per_slot)
    if count == stop:
        # A table that grows by a few rows at a time does not plan them all again each time.
        most = max(stop, max_slots(config, strategy.per_slot))
        count = min(1 << (stop - 1).bit_length(), most)
    return _training_plan(config, generation, strategy.size, strategy.per_slot, count)


@lru_cache(maxsize=12)
def _training_plan(
    config: RunConfig, generation: int, size: int, individuals: int, count: int
) -> SlotPlan:
    return plan_slots(
        config.seed,
        generation,
        count,
        positions=config.noise_size - size + 1,
        individuals=individuals,
        episodes=config.episodes,
        sharing=resolve_seed_sharing(config, individuals),
        sampled=config.obs_sample if config.obs_norm else 0.0,
    )


def _split_lengths(
    steps: Sequence[int], reached: Sequence[int], episodes: int, limit: int
) -> Iterator[int]:
    for total, at_limit in zip(steps, reached, strict=True):
        rest, left = episodes - at_limit, max(0, total - at_limit * limit)
        yield from [limit] * at_limit
        yield from (left // rest + (number < left % rest) for number in range(rest))
