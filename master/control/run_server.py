"""The Redis server of an existing run: the named one, or the private one in the run's folder."""

from __future__ import annotations

from es_queue.util.run_folder import NamedRun
from master.run.launch import Launch
from master.services.private_server import PrivateServer


def server_url(run: NamedRun, launch: Launch) -> str | None:
    """Where the run's server is: the one that was named, else the private one in its folder; None
    when that does not run.
    """
    folder = run.server_folder
    if launch.redis_url is not None:
        return launch.redis_url
    return PrivateServer(folder).running_url if folder.is_dir() else None
