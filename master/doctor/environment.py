"""Tries environments in separate processes, so that one that crashes or hangs does not stop the
doctor.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from es_queue.security.passwords import environment_without_redis
from es_queue.util.host_info import source_root
from master.services.child_process import signal_name

DEADLINE_SECONDS = 60.0
LONGEST_ANSWER = 2**14
#: The path ends as that of ``rq worker`` does: our packages' folder, then the current one, for a
#: user's own modules.
PROBE_PROGRAM = """\
import json, os, sys
sys.path += [folder for folder in (sys.argv[2], ".") if folder not in sys.path]
from es_queue.numerics.fingerprint import fix_numeric_environment
fix_numeric_environment()
from es_queue.errors import EsQueueError
wanted = json.loads(sys.argv[3])
try:
    from es_queue.environments.factory import describe
    from es_queue.environments.interface import EnvironmentRequest
    from es_queue.environments.observation_layout import format_parts
    request = EnvironmentRequest(
        wanted["id"],
        tuple(map(tuple, wanted["arguments"])),
        tuple(wanted["wrappers"]),
        wanted["backend"],
        wanted["parameters"],
        preprocessing=wanted["preprocessing"],
    )
    spec = describe(request)
    answer = {
        "observations": spec.observation_size,
        "parts": format_parts(spec.observation_parts)[:300] if spec.observation else "",
        "action": spec.action.kind,
        "backend": spec.backend,
    }
except EsQueueError as error:
    answer = {"error": str(error)[:1000]}
except Exception as error:
    answer = {"error": f"{type(error).__name__}: {error}"[:1000]}
os.write(int(sys.argv[1]), json.dumps(answer).encode())
"""


@dataclass(frozen=True)
class ProbeRequest:
    """An environment as ``EnvironmentRequest`` names it; importing that one needs Gymnasium, which
    may be what is broken.
    """

    id: str
    arguments: tuple[tuple[str, Any], ...] = ()
    wrappers: tuple[str, ...] = ()
    backend: str = "auto"
    parameters: int = 0
    preprocessing: str = "auto"


@dataclass(frozen=True)
class ProbeResult:
    """What came of an environment: what it is like, or an error. Both are texts of
    someone else's.
    """

    id: str
    description: str = ""
    error: str = ""


def probe_environments(
    requests: Sequence[ProbeRequest], seconds: float = DEADLINE_SECONDS
) -> list[ProbeResult]:
    """Make each environment and play a step of it, all at once, with a deadline for each."""
    deadline = time.monotonic() + seconds
    probes = [EnvironmentProbe(request) for request in requests]
    try:
        return [probe.result(deadline, seconds) for probe in probes]
    finally:
        for probe in probes:
            probe.end()


class EnvironmentProbe:
    """One environment in its process."""

    def __init__(self, request: ProbeRequest) -> None:
        self._request = request
        self._pipe, child_pipe = os.pipe()
        # -P: the current folder comes last, and not first as it would with -c.
        command = [
            sys.executable,
            "-P",
            "-c",
            PROBE_PROGRAM,
            str(child_pipe),
            str(source_root()),
            json.dumps(asdict(request)),
        ]
        nowhere = subprocess.DEVNULL
        try:
            self._process = subprocess.Popen(
                command,
                stdin=nowhere,
                stdout=nowhere,
                stderr=nowhere,
                env=environment_without_redis(os.environ),
                pass_fds=[child_pipe],
                start_new_session=True,
            )
        finally:
            os.close(child_pipe)

    def result(self, deadline: float, seconds: float) -> ProbeResult:
        try:
            code = self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return ProbeResult(
                self._request.id,
                error=f"it hangs: creating it and one step took longer than {seconds:g} s",
            )
        os.set_blocking(
            self._pipe, False
        )  # a process that it has left behind may hold the other end
        try:
            answer = json.loads(os.read(self._pipe, LONGEST_ANSWER))
        except (OSError, ValueError):
            answer = {
                "error": f"its process was ended by {signal_name(-code)}"
                if code < 0
                else f"its process ended with code {code} and no output"
            }
        if "error" in answer:
            return ProbeResult(self._request.id, error=str(answer["error"]))
        parts = f" ({answer['parts']})" if answer["parts"] else ""
        return ProbeResult(
            self._request.id,
            (
                f"{answer['observations']} observations{parts}, {answer['action']} actions, "
                f"{answer['backend']} back end"
            ),
        )

    def end(self) -> None:
        """End what is left of it, its children too."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._pipe)
