"""The reply to each path of the page; the paths are fixed, so none leads out of the folder."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import blake2b
from importlib import resources
from typing import Any

from es_queue.errors import EsQueueError, UsageError
from es_queue.protocol.keys import RUN_ID
from es_queue.security.sanitize import sanitize
from master.status.web import prometheus
from master.status.web.queries import DashboardQueries

#: Only what comes from here runs, and nobody may put the page into a frame.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src "
    "'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
JSON, TEXT = "application/json", "text/plain; charset=utf-8"
RUN_PATH = re.compile(rf"/api/runs/(?P<run>{RUN_ID.pattern})(?P<errors>/errors)?")
#: Shorter answers gain nothing by being packed.
WORTH_PACKING = 1400


@dataclass(frozen=True)
class Reply:
    """An answer: its status, media type and bytes, and headers besides those that all have."""

    status: int
    media_type: str
    body: bytes
    headers: dict[str, str] = field(default_factory=lambda: {"Cache-Control": "no-store"})

    def compress(self) -> Reply:
        """The same for a browser that takes gzip, where that is worth it."""
        headers = {**self.headers, "Vary": "Accept-Encoding"}
        if len(self.body) < WORTH_PACKING:
            return replace(self, headers=headers)
        return replace(
            self,
            body=gzip.compress(self.body, 1, mtime=0),
            headers={**headers, "Content-Encoding": "gzip"},
        )


def text_reply(status: int, text: str, **headers: str) -> Reply:
    """A sentence as an answer."""
    return Reply(status, TEXT, f"{text}\n".encode(), {"Cache-Control": "no-store", **headers})


class WebRoutes:
    """The page's paths."""

    def __init__(self, queries: DashboardQueries) -> None:
        self._queries = queries

    def reply(self, path: str) -> Reply:
        """The answer to a path without its query."""
        if path in static_files():
            return static_files()[path]
        if path == "/metrics":
            return self._metrics()
        if path == "/api/runs":
            return json_reply(self._queries.runs)
        match = RUN_PATH.fullmatch(path)
        if match is None:
            return text_reply(404, "there is no such page")
        query = self._queries.errors if match["errors"] else self._queries.run
        return json_reply(lambda: query(match["run"]))

    def _metrics(self) -> Reply:
        try:
            data = self._queries.figures()
        except EsQueueError as error:
            data = {"trouble": str(error)}
        return Reply(200, prometheus.MEDIA_TYPE, prometheus.format_metrics(data))


def json_reply(query: Callable[[], dict[str, Any]]) -> Reply:
    """What was seen; 404 for what is not there, 503 for what cannot be looked at, each with one
    sentence.
    """
    try:
        return Reply(200, JSON, json.dumps(query(), allow_nan=False).encode())
    except EsQueueError as error:
        status = 404 if isinstance(error, UsageError) else 503
        return Reply(status, JSON, json.dumps({"trouble": sanitize(error)}).encode())


@cache
def static_files() -> dict[str, Reply]:
    """The page itself by path; a browser asks again each time, and is told when nothing has
    changed.
    """
    replies = {}
    for entry in resources.files("master.status.web").joinpath("static").iterdir():
        kind = MEDIA_TYPES.get(entry.name.rpartition(".")[2])
        if kind is not None:
            body = entry.read_bytes()
            tag = blake2b(body, digest_size=12).hexdigest()
            replies[f"/{entry.name}"] = Reply(
                200, kind, body, {"Cache-Control": "no-cache", "ETag": f'"{tag}"'}
            )
    return {**replies, "/": replies["/index.html"]}
