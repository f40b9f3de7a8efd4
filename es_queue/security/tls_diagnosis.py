"""Explains a failed TLS connection to Redis, and what to change."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

PROBE_SECONDS = 2.0


def diagnose_tls(settings: Mapping[str, Any], encrypted: bool, error: Exception) -> str | None:
    """What is wrong with ``rediss://`` or ``redis://``, keys or certificates; None for another
    cause.

    settings: the connection's host, port and files; no credentials are sent. Waits at most two
    seconds.
    """
    message = str(error)
    if not encrypted:
        closed = "reset" in message or "closed" in message.lower() or "Protocol Error" in message
        return (
            "it expects TLS: write rediss:// instead of redis://"
            if closed and accepts_tls(settings)
            else None
        )
    if "CERTIFICATE_VERIFY_FAILED" in message:
        return describe_untrusted(settings, message)
    if "KEY_VALUES_MISMATCH" in message:
        return "the key in ssl_keyfile does not belong to the certificate in ssl_certfile"
    if any(word in message for word in ("NO_CERTIFICATE_OR_CRL_FOUND", "PEM lib", "NO_START_LINE")):
        return (
            "one of ssl_ca_certs, ssl_certfile and ssl_keyfile contains no certificate or no "
            "key in PEM form"
        )
    if "WRONG_VERSION_NUMBER" in message or ("imeout" in message and accepts_plaintext(settings)):
        return (
            "it does not use TLS there: name its TLS port, or write redis:// instead of rediss://"
        )
    if any(
        word in message
        for word in ("EOF occurred", "CERTIFICATE_REQUIRED", "ALERT", "reset", "closed")
    ):
        return (
            "it ended the TLS connection: it may require a client certificate, "
            "?ssl_certfile=FILE&ssl_keyfile=FILE"
        )
    return None


def describe_untrusted(settings: Mapping[str, Any], message: str) -> str:
    if "not valid for" in message:
        return (
            f"its certificate is not for {str(settings.get('host'))[:100]}: "
            "connect with a name in the certificate"
        )
    if "expired" in message:
        return "its certificate has expired"
    given = settings.get("ssl_ca_certs")
    if given:
        return (
            f"its certificate is not signed by the authority in {str(given)[:200]}: name the "
            f"right authority's file with ?ssl_ca_certs=FILE"
        )
    return (
        "its certificate is not signed by an authority that this host trusts: name the "
        "authority's file with ?ssl_ca_certs=FILE"
    )


def accepts_tls(settings: Mapping[str, Any]) -> bool:
    """Whether a TLS handshake succeeds. Nothing is verified, because nothing is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with suppress(OSError), open_socket(settings) as plain, context.wrap_socket(plain) as encrypted:
        return encrypted.version() is not None
    return False


def accepts_plaintext(settings: Mapping[str, Any]) -> bool:
    with suppress(OSError), open_socket(settings) as plain:
        plain.sendall(b"PING\r\n")
        return plain.recv(1) in (b"+", b"-")
    return False


def open_socket(settings: Mapping[str, Any]) -> socket.socket:
    return socket.create_connection(
        (str(settings.get("host", "localhost")), int(settings.get("port", 6379))), PROBE_SECONDS
    )
