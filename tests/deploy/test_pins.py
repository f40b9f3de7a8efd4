"""Images are built from pinned parts: packages by hash, the base by digest once the
script was run.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from packaging.requirements import Requirement

from tests.deploy.test_files import DOCKER, PROJECT, STAGES, pins

sys.path.append(str(DOCKER))
import renew_pins

LINE = re.compile(r"(?P<name>[\w.-]+)==(?P<version>\S+) --hash=sha256:[0-9a-f]{64}")
DIGEST = "sha256:" + "5e" * 32


def locked(*names: str) -> dict[str, str]:
    lines = [
        line
        for name in names
        for line in (DOCKER / name).read_text().splitlines()
        if not line.startswith("#")
    ]
    found = [LINE.fullmatch(line) for line in lines]
    assert all(found), [line for line, one in zip(lines, found, strict=True) if one is None]
    return {one["name"].lower(): one["version"] for one in found if one}


def test_every_package_of_the_images_has_a_hash_and_the_version_of_the_constraints() -> None:
    needed = {Requirement(text).name.lower() for text in PROJECT["dependencies"]}
    known = {name.replace("_", "-"): one for name, one in pins().items()}.items() | pins().items()
    ours, classic = locked("requirements.txt"), locked("classic.txt", "classic-source.txt")
    assert len(ours) > 15 and ours.items() <= known and needed <= ours.keys()
    assert len(classic) > 15 and classic.items() <= known


def test_the_images_install_nothing_without_its_hash() -> None:
    runs = [step.rest for step in STAGES["build"].steps if step.word == "RUN"]
    (first,) = [run for run in runs if "-r /src/docker/requirements.txt" in run]
    (ours,) = [run for run in runs if "pip install" in run and run != first]
    assert (
        "--require-hashes" in first
        and "--no-index" in ours
        and "--no-deps" in ours
        and "--no-build-isolation" in ours
    )
    classic = [step.rest for step in STAGES["classic-build"].steps if "pip install" in step.rest]
    assert len(classic) == 3
    assert all("--require-hashes" in run or "--no-index" in run for run in classic)
    assert all("--only-binary :all:" in run or "--no-build-isolation" in run for run in classic)


def test_the_lock_names_no_index() -> None:
    for name in ("requirements.txt", "classic.txt", "classic-source.txt"):
        text = (DOCKER / name).read_text()
        assert "://" not in text and "index" not in text


def test_the_pinned_base_image_is_the_dockerfiles_own() -> None:
    (base,) = re.findall(r"^BASE=(\S+)$", (DOCKER / "images.env").read_text(), re.MULTILINE)
    (own,) = re.findall(r"^ARG BASE=(\S+)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    name, _, digest = base.partition("@")
    assert name == own and (not digest or renew_pins.DIGEST.fullmatch(digest))
    assert f"${{BASE:-{own}}}" in (DOCKER / "compose.yaml").read_text()


class Registry(BaseHTTPRequestHandler):
    """Asks for a token and then gives a digest, as registries do."""

    digest = DIGEST

    def do_HEAD(self) -> None:
        known = self.headers.get("Authorization") == "Bearer anyone"
        self.send_response(
            200 if known and self.path == "/v2/library/debian/manifests/13.7-slim" else 401
        )
        realm = f"http://127.0.0.1:{self.server.server_port}/token"  # type: ignore[attr-defined]
        self.send_header(
            "Docker-Content-Digest" if known else "WWW-Authenticate",
            self.digest if known else f'Bearer realm="{realm}",service="s",scope="pull"',
        )
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(
            json.dumps(
                {"token": "anyone" if self.path == "/token?service=s&scope=pull" else ""}
            ).encode()
        )

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = HTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()
