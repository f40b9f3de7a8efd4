"""Images are built from pinned parts: packages by hash, the base by digest once the
script was run.
"""

from __future__ import annotations

import re
import sys

from packaging.requirements import Requirement

from tests.deploy.test_files import DOCKER, PROJECT, STAGES, pins

sys.path.append(str(DOCKER))

LINE = re.compile(r"(?P<name>[\w.-]+)==(?P<version>\S+) --hash=sha256:[0-9a-f]{64}")


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
    models = locked("models.txt")
    assert {"torch", "safetensors", "fsspec"} <= models.keys()
    assert {name: one for name, one in models.items() if name in pins()}.items() <= known


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
    (models,) = [step.rest for step in STAGES["models-build"].steps if step.word == "RUN"]
    assert "--require-hashes --no-deps --only-binary :all: -r /src/docker/models.txt" in models
    assert all("--require-hashes" in run or "--no-index" in run for run in classic)
    assert all("--only-binary :all:" in run or "--no-build-isolation" in run for run in classic)
