"""Images are built from pinned parts: packages by hash, the base by digest once the
script was run.
"""

from __future__ import annotations

import re
import sys

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
