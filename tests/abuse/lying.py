"""A worker that lies: ``rq worker -w tests.abuse.lying.Worker`` says that its episodes went far
better than they did.
"""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from functools import partial
from typing import Any

import rq

#: What it adds to each return and fitness; and the fraction of a fingerprint that it changes, for a
#: worker of other arithmetic.
TOO_MUCH = 1000.0
OTHER = "ES_QUEUE_TEST_OTHER_NUMERICS"
#: How often it sends each answer: somebody who plays a slot again is to be the last of many to be
#: heard.
REPEAT = "ES_QUEUE_TEST_REPEAT"
#: In place of better results: the mean of one observation in each sampled episode.
MEAN = "ES_QUEUE_TEST_MEAN"


class Worker(rq.Worker):
    """A plain worker whose horses change the evaluator before they take their seat."""

    def main_work_horse(self, job: Any, queue: Any) -> None:
        from es_queue.numerics.fingerprint import fix_numeric_environment

        fix_numeric_environment()  # before numpy is loaded, as the seat does
        corrupt(strange=bool(os.environ.get(OTHER)))
        repeat(int(os.environ.get(REPEAT, "1")))
        super().main_work_horse(job, queue)


def corrupt(*, strange: bool) -> None:
    """Results too good to be true; or honest ones under another fingerprint."""
    from workers import join
    from workers.slots import Evaluator

    honest, own = Evaluator.evaluate, join.fingerprint

    mean = float(os.environ.get(MEAN, "0"))
    change = partial(with_mean, mean=mean) if mean else better

    def lie(self: Evaluator, *arguments: Any) -> Any:
        told = honest(self, *arguments)
        return replace(told, results=tuple(change(one) for one in told.results))

    if strange:
        join.fingerprint = lambda *arguments: own(*arguments)[::-1]
    else:
        Evaluator.evaluate = lie  # type: ignore[method-assign]


def better(result: Any) -> Any:
    return replace(
        result,
        **{
            name: tuple(one + TOO_MUCH for one in getattr(result, name))
            for name in ("fitness", "returns")
        },
    )


def with_mean(result: Any, mean: float) -> Any:
    """The result, whose sampled episodes had one observation: all its numbers are ``mean``."""

    def one_observation(moments: Any) -> Any:
        numbers = len(moments.mean) // 8
        return replace(
            moments, count=1, mean=struct.pack("<d", mean) * numbers, m2=bytes(8 * numbers)
        )

    return replace(result, moments=tuple(map(one_observation, result.moments)))


def repeat(times: int) -> None:
    """Each answer so many times, all at once."""
    from es_queue.protocol.redis_channel import RedisWorkerChannel

    once = RedisWorkerChannel.answer

    def answer(self: RedisWorkerChannel, block: Any, payload: bytes) -> bool:
        client: Any = self._client
        pipeline = client.pipeline(transaction=True)
        for _ in range(times - 1):
            pipeline.xadd(
                self.keys.results(block.publication), {"answer": payload}, nomkstream=True
            )
        pipeline.execute()
        return once(self, block, payload)

    RedisWorkerChannel.answer = answer  # type: ignore[method-assign]
