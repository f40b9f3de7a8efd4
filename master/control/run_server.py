"""The Redis server of an existing run: the named one, or the private one in the run's folder."""

from __future__ import annotations

from pathlib import Path

from master.run.launch import Launch
from master.services.private_server import PrivateServer


def server_url(run: str, launch: Launch) -> str | None:
    """Where the run's server is: the one that was named, else the private one in its folder; None
    when that does not run.
    """
    if launch.redis_url is not None:
        return launch.redis_url
    folder = private_server_folder(run, launch)
    if not folder.is_dir():
        return None
    server = PrivateServer(folder)
    url = server.url
    return url if server.socket_path.is_socket() else None


def private_server_folder(run: str, launch: Launch) -> Path:
    return (launch.run_dir or Path("runs") / run) / "redis"
