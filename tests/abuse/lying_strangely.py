"""``rq worker -w tests.abuse.lying_strangely.Worker``: lies of which ES_QUEUE_TEST_LIE names one.

strange:   results far too good, under another fingerprint
fitness:   honest returns, and in slot 0 of each generation a fitness of 1e99
seconds:   honest results that took 1e308 seconds each
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import rq

LIE = "ES_QUEUE_TEST_LIE"


class Worker(rq.Worker):
    def main_work_horse(self, job: Any, queue: Any) -> None:
        from es_queue.numerics.fingerprint import fix_numeric_environment

        fix_numeric_environment()
        lie(os.environ[LIE])
        super().main_work_horse(job, queue)


def lie(how: str) -> None:
    from tests.abuse import lying
    from workers.slots import Evaluator

    if how == "strange":
        lying.corrupt(strange=True)
        lying.corrupt(strange=False)
        return
    honest = Evaluator.evaluate

    def told(self: Evaluator, *arguments: Any) -> Any:
        answer = honest(self, *arguments)
        if how == "seconds":
            return replace(answer, seconds=1e308)
        return replace(answer, results=tuple(too_fit(answer.kind, one) for one in answer.results))

    Evaluator.evaluate = told  # type: ignore[method-assign]


def too_fit(kind: str, result: Any) -> Any:
    if kind != "train" or result.slot != 0:
        return result
    return replace(result, fitness=(1e99, -1e99)[: len(result.fitness)])
