"""How a master leaves its run: finished, stopped or failed."""

from __future__ import annotations

import json
import logging
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from es_queue.protocol import keys
from es_queue.protocol.keys import FAILED, FINISHED, STOPPED
from es_queue.protocol.store import MasterStore
from es_queue.security.sanitize import sanitize
from es_queue.util.command_path import format_command
from es_queue.util.run_folder import ERROR_REPORTS_FILE, FAILURE_FILE
from master.control.inbox import ControlInbox
from master.fleet.seat_manager import SeatManager
from master.loop.loop import Master, Outcome, for_redis, run_digest
from master.loop.state import RunState
from master.run.lease import LeaseRenewal
from master.run.run_services import RunContext
from master.storage.checkpoint import Checkpoints, write_atomically

LOGGER = logging.getLogger("es_queue.run")
#: A master that leaves waits no longer for a Redis that is away: its lease lapses by itself.
LEAVE_SECONDS = 5.0
LONGEST_REPORT = 64 * 2**10
#: Why a run stops, in its summary, if its time is up and its evaluations must wait for a worker.
UNSERVED = "max_seconds, and no worker for the final evaluation"


class RunEnding:
    """Ends a run: saves what can be resumed, and releases workers."""

    def __init__(
        self,
        context: RunContext,
        channel: MasterStore,
        renewal: LeaseRenewal,
        seat_manager: SeatManager,
        inbox: ControlInbox,
        master: Master,
        checkpoints: Checkpoints,
    ) -> None:
        self._context, self._channel, self._renewal = context, channel, renewal
        self._seat_manager, self._inbox = seat_manager, inbox
        self._master, self._checkpoints = master, checkpoints
        self._is_ended = False

    def finish_stopped(self, *, is_unserved: bool = False) -> dict[str, Any]:
        """End a run without loss: on request, or because no worker is there for its final
        evaluation. Raises KeyboardInterrupt before the first publication, because there is nothing
        to resume.
        """
        generation, context = self._master.current, self._context
        if generation is None:
            self.finish_early(STOPPED)
            raise KeyboardInterrupt
        state = generation.state
        try:
            path = self._checkpoints.save(state.generation, generation.checkpoint)
        finally:
            self.finish_early(STOPPED, why=UNSERVED if is_unserved else None)
        summary = self._make_summary(STOPPED, state, None)
        if is_unserved:
            summary |= {"reason": UNSERVED, "interrupted": False}
        context.view.summary(summary)
        listen_flag = "" if context.services.launch.listen is None else " --listen"
        resume = f"{format_command('es-master')} --resume {context.run_words}{listen_flag}"
        if is_unserved:
            LOGGER.warning(
                "--max-seconds has passed, and no worker was there for the final evaluation: "
                f"start one and continue with {resume}, or play the policy here with "
                f"{format_command('es-play')} {path}"
            )
        else:
            LOGGER.info(
                f"stopped at generation {state.generation}, checkpoint {path}; continue with: "
                f"{resume}"
            )
        return summary

    def finish_failed(self, error: BaseException) -> None:
        why = sanitize(str(error) or type(error).__name__, 300)
        self.finish_early(FAILED, why=why)
        with suppress(Exception):
            write_atomically(self._failure_file, json.dumps({"why": why}).encode())

    def forget_failure(self) -> None:
        with suppress(OSError):
            self._failure_file.unlink(missing_ok=True)

    @property
    def _failure_file(self) -> Path:
        return self._context.paths.run_dir / FAILURE_FILE

    def finish_early(self, name: str, why: str | None = None) -> None:
        """A failure here does not hide why the run ends."""
        if self._is_ended:
            return
        self._channel.retry.give_up_after(LEAVE_SECONDS)
        generation, data = self._master.current, None
        if generation is not None:
            data = for_redis(generation.checkpoint)
            with suppress(Exception):
                self._checkpoints.save(generation.state.generation, generation.checkpoint)
        unused = generation is None and name == STOPPED and not self._context.is_resumed
        with suppress(Exception):
            self._mark_ended(name, 0 if unused else keys.RUN_SECONDS, data, why=why)

    def finish_completed(self, outcome: Outcome) -> dict[str, Any]:
        generation = self._master.current
        if generation is not None:  # a finished run that plays nothing more has published nothing
            self._checkpoints.save(generation.state.generation, generation.checkpoint)
        summary = self._make_summary(FINISHED, outcome.state, outcome)
        write_atomically(
            self._context.paths.run_dir / "summary.json", json.dumps(summary, indent=2).encode()
        )
        with suppress(Exception):
            self._inbox.discard_all()
        names = ("eval_mean", "eval_std", "eval_min", "eval_episodes")
        final = {name: summary[name] for name in names}
        self._mark_ended(FINISHED, keys.FINISHED_SECONDS, None, **final)
        self._context.view.summary(summary)
        return summary

    def _mark_ended(self, state: str, seconds: int, data: bytes | None, **more: Any) -> None:
        self.end_renewal()  # a renewal after the end would take the lease again
        texts = {name: str(value) for name, value in more.items() if value is not None}
        ended = {"state": state, "updated": f"{time.time():.3f}", "workers": "0", "answered": ""}
        token, refused = self._context.claim.token, self._master.refused()
        self._channel.finish(token, {**ended, **texts}, seconds, data, refused)
        self._is_ended = True
        self.save_error_reports()
        # After the fenced write: the seats may be another master's by now.
        with suppress(Exception):
            self._seat_manager.close_open_seats()
            self._seat_manager.clear_registries()

    def end_renewal(self) -> None:
        self._renewal.end(LEAVE_SECONDS)

    def save_error_reports(self) -> str:
        """Save workers' newest tracebacks, because a private server ends with its run; returns
        their place, for the end of a sentence.
        """
        self._channel.retry.give_up_after(LEAVE_SECONDS)
        path = self._context.paths.run_dir / ERROR_REPORTS_FILE
        with suppress(Exception):
            if reports := self._channel.errors():
                lines = "".join(f"{format_report(report)}\n" for report in reports)
                write_atomically(path, lines.encode())
                return f"; the newest {len(reports)} reports of workers are in {path}"
        return ""

    def _make_summary(self, name: str, state: RunState, outcome: Outcome | None) -> dict[str, Any]:
        setup, paths, counters = self._context.setup, self._context.paths, state.counters
        figures = outcome.evaluation if outcome else None
        best, last = self._checkpoints.best_path, self._checkpoints.last_path
        return {
            "state": name,
            "interrupted": name == STOPPED,
            "reason": state.reason,
            "run": paths.run,
            "run_dir": str(paths.run_dir),
            "digest": run_digest(state, setup.strategy),
            "generation": state.generation,
            "env_steps": counters.env_steps,
            "episodes": counters.episodes,
            "seconds": round(counters.seconds, 3),
            "eval_mean": figures.mean if figures else None,
            "eval_std": figures.std if figures else None,
            "eval_min": figures.minimum if figures else None,
            "eval_episodes": figures.count if figures else None,
            "confirm_mean": state.confirm_mean,
            "reproducible": state.reproducible,
            "seed": setup.config.seed,
            "best_checkpoint": str(best) if best.exists() else None,
            "last_checkpoint": str(last) if last else None,
        }


def format_report(text: str) -> str:
    """A worker's report as one line of ASCII JSON; an invalid or long one as a JSON string."""
    try:
        report = json.loads(text) if len(text) <= LONGEST_REPORT else text[:LONGEST_REPORT]
    except (ValueError, RecursionError):
        report = text
    return json.dumps(report)
