#!/usr/bin/env python3
"""Renew what the images are pinned to: hashes of Python packages, and the digest of the base image.

    docker/renew_pins.py pip                               # requirements, classic and models.txt
    docker/renew_pins.py images --registry https://HOST    # adds digests to docker/images.env

``pip`` reads pyproject.toml and constraints.txt, uses pip's own index and accepts only wheels, for
the Python of the images on x86-64. If a package's requirements depend on Python's version, run it
with that one. ``images`` asks a registry's HTTP API. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DOCKER = Path(__file__).resolve().parent
REQUIREMENTS, CLASSIC, MODELS, CONSTRAINTS, IMAGES = (
    DOCKER / name
    for name in ("requirements.txt", "classic.txt", "models.txt", "constraints.txt", "images.env")
)
#: Debian 13's. pip takes the newest wheel that fits one of the platforms; none includes older ones.
PYTHON = "3.13"
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in range(28, 16, -1)),
    "manylinux2014_x86_64",
)
#: Builds es-queue itself, without a download of its own.
BUILDS = ("setuptools", "wheel")
#: The image classic: what people installed before, what gym needs, and what es-queue needs besides.
#: gym and box2d-py have no wheels: docker/classic-source.txt has their sources.
CLASSIC_NEEDS = (
    *("redis", "rq", "numpy", "msgpack", "cloudpickle", "gym-notices"),
    *("gymnasium", "pygame-ce", "threadpoolctl", "rich", "waitress", "prometheus_client"),
)
#: What the image models has besides. pip downloads 3 GB to lock it.
MODELS_NEEDS = ("torch", "safetensors", "fsspec")
MANIFESTS = (
    "application/vnd.oci.image.index.v1+json, "
    "application/vnd.docker.distribution.manifest.list.v2+json, "
    "application/vnd.oci.image.manifest.v1+json, "
    "application/vnd.docker.distribution.manifest.v2+json"
)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
SECONDS = 60
HEAD = f"""\
# Written by docker/renew_pins.py pip: every package of the {{images}}, with the
# SHA-256 of its wheel (pip install --require-hashes). Python {PYTHON}, Linux on x86-64; versions:
# docker/constraints.txt.
"""


# --- Python packages


def locked(images: str, needed: Sequence[str]) -> str:
    """A line per package.

    Raises CalledProcessError if pip finds no set of wheels.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--dry-run",
            "--ignore-installed",
            "--quiet",
            "--only-binary",
            ":all:",
        ]
        command += [
            "--report",
            str(report),
            "--target",
            folder,
            "--python-version",
            PYTHON,
            "--constraint",
            str(CONSTRAINTS),
        ]
        command += [word for platform in PLATFORMS for word in ("--platform", platform)]
        subprocess.run([*command, *needed, *BUILDS], check=True)
        found = json.loads(report.read_text("utf-8"))["install"]
    return HEAD.format(images=images) + "\n".join(sorted(map(line_of, found), key=str.lower)) + "\n"


def line_of(package: dict[str, Any]) -> str:
    """``name==version --hash=sha256:…`` of an entry in pip's report."""
    about = package["metadata"]
    digest = package["download_info"]["archive_info"]["hashes"]["sha256"]
    return f"{about['name']}=={about['version']} --hash=sha256:{digest}"


# --- images


def asked(url: str, token: str = "") -> urllib.request.Request:
    headers = {"Accept": MANIFESTS} | ({"Authorization": f"Bearer {token}"} if token else {})
    return urllib.request.Request(url, headers=headers, method="HEAD")


def token_for(challenge: str) -> str:
    """A token for anyone, from the address in the registry's WWW-Authenticate header.

    Raises ValueError.
    """
    given = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    if not challenge.lower().startswith("bearer ") or "realm" not in given:
        raise ValueError(
            f"the registry asks for {challenge[:60] or 'nothing'}; only Bearer tokens are supported"
        )
    query = urllib.parse.urlencode(
        {name: given[name] for name in ("service", "scope") if name in given}
    )
    with urllib.request.urlopen(f"{given['realm']}?{query}", timeout=SECONDS) as reply:
        answer = json.load(reply)
    return str(answer.get("token") or answer["access_token"])


def digest_of(registry: str, image: str) -> str:
    """The digest that the registry has for NAME:TAG. Raises OSError or ValueError."""
    name, _, tag = image.partition(":")
    place = name if "/" in name else f"library/{name}"
    url = f"{registry.rstrip('/')}/v2/{place}/manifests/{tag or 'latest'}"
    try:
        reply = urllib.request.urlopen(asked(url), timeout=SECONDS)
    except urllib.error.HTTPError as error:
        if error.code != 401:
            raise
        reply = urllib.request.urlopen(
            asked(url, token_for(error.headers.get("WWW-Authenticate", ""))), timeout=SECONDS
        )
    with reply:
        digest = str(reply.headers.get("Docker-Content-Digest", ""))
    if not DIGEST.fullmatch(digest):
        raise ValueError(f"the registry gave {digest[:80]!r} as the digest of {image}")
    return digest


def pinned(text: str, registry: str) -> str:
    """docker/images.env with the present digest behind each image."""
    lines = []
    for line in text.splitlines():
        name, equals, image = line.partition("=")
        tagged = image.partition("@")[0]
        is_image = bool(equals) and not line.startswith("#")
        lines.append(f"{name}={tagged}@{digest_of(registry, tagged)}" if is_image else line)
    return "\n".join(lines) + "\n"


def main() -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["pip", "images"])
    parser.add_argument("--registry", help="images: the https address of the registry's API")
    given = parser.parse_args()
    if given.what == "images" and not given.registry:
        parser.error("--registry is missing: give the address of the registry's API, https://HOST")
    try:
        if given.what == "pip":
            project = tomllib.loads((DOCKER.parent / "pyproject.toml").read_text("utf-8"))
            texts = {
                REQUIREMENTS: locked(
                    "images master and worker", project["project"]["dependencies"]
                ),
                CLASSIC: locked("image classic", CLASSIC_NEEDS),
                MODELS: locked("image models", MODELS_NEEDS),
            }
        else:
            texts = {IMAGES: pinned(IMAGES.read_text("utf-8"), given.registry)}
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"renew_pins: {error}; nothing was changed", file=sys.stderr)
        return 1
    for target, text in texts.items():
        target.write_text(text, "utf-8")
        print(f"wrote {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
