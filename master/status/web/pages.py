"""What each path of the page answers; every path is known beforehand, so none leads out of the folder."""

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
from master.status.web import prometheus
from master.status.web.looks import Looks
from master.wording import printable

#: Only what comes from here runs, and nobody may put the page into a frame.
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
GUARDS = {
    "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin", "X-Frame-Options": "DENY",
}  # fmt: skip
KINDS = {"html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
JSON, TEXT = "application/json", "text/plain; charset=utf-8"
OF_RUN = re.compile(rf"/api/runs/(?P<run>{RUN_ID.pattern})(?P<errors>/errors)?")
#: Shorter answers gain nothing by being packed.
WORTH_PACKING = 1400


@dataclass(frozen=True)
class Reply:
    """An answer: its status, media type and bytes, and headers besides those that all have."""

    status: int
    kind: str
    body: bytes
    headers: dict[str, str] = field(default_factory=lambda: {"Cache-Control": "no-store"})

    def packed(self) -> Reply:
        """The same for a browser that takes gzip, where that is worth it."""
        headers = {**self.headers, "Vary": "Accept-Encoding"}
        if len(self.body) < WORTH_PACKING:
            return replace(self, headers=headers)
        return replace(self, body=gzip.compress(self.body, 1, mtime=0), headers={**headers, "Content-Encoding": "gzip"})


def said(status: int, text: str, **headers: str) -> Reply:
    """A sentence as an answer."""
    return Reply(status, TEXT, f"{text}\n".encode(), {"Cache-Control": "no-store", **headers})


class Pages:
    """The page's paths."""

    def __init__(self, looks: Looks) -> None:
        self._looks = looks

    def reply(self, path: str) -> Reply:
        """The answer to a path without its query."""
        if path in files():
            return files()[path]
        if path == "/metrics":
            return self._metrics()
        if path == "/api/runs":
            return as_json(self._looks.runs)
        match = OF_RUN.fullmatch(path)
        if match is None:
            return said(404, "there is no such page")
        look = self._looks.errors if match["errors"] else self._looks.run
        return as_json(lambda: look(match["run"]))

    def _metrics(self) -> Reply:
        try:
            data = self._looks.figures()
        except EsQueueError as error:
            data = {"trouble": str(error)}
        return Reply(200, prometheus.KIND, prometheus.exposition(data).encode())


def as_json(look: Callable[[], dict[str, Any]]) -> Reply:
    """What was seen; 404 for what is not there, 503 for what cannot be looked at, each with one sentence."""
    try:
        return Reply(200, JSON, json.dumps(look(), allow_nan=False).encode())
    except EsQueueError as error:
        status = 404 if isinstance(error, UsageError) else 503
        return Reply(status, JSON, json.dumps({"trouble": printable(error)}).encode())


@cache
def files() -> dict[str, Reply]:
    """The page itself by path; a browser asks again each time, and is told when nothing has changed."""
    found = {}
    for entry in resources.files("master.status.web").joinpath("static").iterdir():
        kind = KINDS.get(entry.name.rpartition(".")[2])
        if kind is not None:
            body = entry.read_bytes()
            tag = blake2b(body, digest_size=12).hexdigest()
            found[f"/{entry.name}"] = Reply(200, kind, body, {"Cache-Control": "no-cache", "ETag": f'"{tag}"'})
    return {**found, "/": found["/index.html"]}
