"""The page as a WSGI application: allowed requests, and replies."""

from __future__ import annotations

import logging
from collections.abc import Collection
from http import HTTPStatus
from typing import TYPE_CHECKING

from master.status.web.address import is_host_allowed
from master.status.web.pages import SECURITY_HEADERS, Reply, WebRoutes, text_reply

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

ALLOWED = "GET, HEAD"
MISDIRECTED = (
    "this page is not served under that name: use the address that es-status printed, or start "
    "it with --web-host NAME"
)


class PageApplication:
    """Answers GET and HEAD of the page's paths under loopback names and ``hosts``."""

    def __init__(self, routes: WebRoutes, hosts: Collection[str]) -> None:
        self._routes, self._hosts = routes, hosts

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        try:
            reply = self._reply(environ)
        except Exception:
            logging.getLogger(__name__).exception("es-status: the page failed")
            reply = text_reply(500, "the page failed: es-status printed the reason")
        start_response(status_line(reply), response_headers(reply))
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [reply.body]

    def _reply(self, environ: WSGIEnvironment) -> Reply:
        if environ["REQUEST_METHOD"] not in ALLOWED.split(", "):
            return text_reply(405, f"this page is read-only: use {ALLOWED}", Allow=ALLOWED)
        if not is_host_allowed(environ.get("HTTP_HOST"), self._hosts):
            return text_reply(421, MISDIRECTED)
        reply = self._routes.reply(environ["PATH_INFO"])
        tag = reply.headers.get("ETag")
        if tag is not None and tag in environ.get("HTTP_IF_NONE_MATCH", ""):
            return Reply(304, reply.media_type, b"", reply.headers)
        return reply.compress() if "gzip" in environ.get("HTTP_ACCEPT_ENCODING", "") else reply


def status_line(reply: Reply) -> str:
    return f"{reply.status} {HTTPStatus(reply.status).phrase}"


def response_headers(reply: Reply) -> list[tuple[str, str]]:
    """All headers of a reply; one without content has neither type nor length."""
    content = {"Content-Type": reply.media_type, "Content-Length": str(len(reply.body))}
    return list(
        {**SECURITY_HEADERS, **reply.headers, **({} if reply.status == 304 else content)}.items()
    )
