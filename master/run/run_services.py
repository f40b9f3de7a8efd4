"""What a run is given by the process that it runs in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from es_queue.protocol.timing import Clocks
from master.run.launch import Launch
from master.services.private_server import PrivateServer
from master.services.supervisor_client import SupervisorClient


@dataclass
class StopSignal:
    """is_interrupted: whether a person asked to stop; is_looping: the run has begun, so that an
    interrupt ends it in order
    """

    is_interrupted: Callable[[], bool]
    is_looping: bool = False

    def start_looping(self) -> None:
        self.is_looping = True


@dataclass(frozen=True)
class Services:
    """client, url: of the run's Redis; private_server, supervisor: None for a run that has none"""

    launch: Launch
    clocks: Clocks
    client: Any
    url: str
    stop: StopSignal
    private_server: PrivateServer | None = None
    supervisor: SupervisorClient | None = None


@dataclass(frozen=True)
class LeaseClaim:
    """The lease that this master has taken: its name, and the token that fences every write."""

    holder: str
    token: str
