"""The sdist and the wheel: complete, installable, and enough to train from."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parents[2]
PACKAGES = ("es_queue", "master", "workers")
#: All that a build reads.
SOURCES = (*PACKAGES, "pyproject.toml", "setup.py", "README.md", "LICENSE")
#: The address that the build names.
REPOSITORY = "https://code.example/team/es-queue"


def run(*command: object, folder: Path, **more: str) -> str:
    """The output of a command, run without this checkout on Python's path."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"} | more
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def project_files() -> list[str]:
    """Files of a build that git has, or would have if they were added."""
    flags = ("--cached", "--others", "--exclude-standard", "--deduplicate")
    listed = run("git", "ls-files", *flags, "--", *SOURCES, folder=HOUSE)
    return [name for name in listed.splitlines() if (HOUSE / name).is_file()]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    source, output = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in project_files():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((HOUSE / name).read_bytes())
    words = (sys.executable, "-m", "build", "--outdir", output, ".")
    text = run(*words, folder=source, ES_QUEUE_REPOSITORY=f"{REPOSITORY}/")
    assert "deprecated" not in text, text
    return output


def wheel_of(built: Path) -> Path:
    (wheel,) = built.glob("*.whl")
    return wheel


def distribution_file(built: Path, name: str) -> bytes:
    """A file of the wheel's metadata."""
    with zipfile.ZipFile(wheel_of(built)) as archive:
        (path,) = [path for path in archive.namelist() if path.endswith(f".dist-info/{name}")]
        return archive.read(path)


def test_sdist_and_wheel_hold_every_file_of_the_packages(built: Path) -> None:
    expected = {name for name in project_files() if name.partition("/")[0] in PACKAGES}
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        shipped = {name.partition("/")[2] for name in archive.getnames()}
    assert len(expected) > 200
    assert expected - shipped == set()
    with zipfile.ZipFile(wheel_of(built)) as archive:
        modules = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert modules == expected


def test_the_addresses_are_those_that_the_build_names_and_no_others(built: Path) -> None:
    metadata = message_from_bytes(distribution_file(built, "METADATA"))
    addresses = dict(text.split(", ") for text in metadata.get_all("Project-URL", []))
    assert addresses.keys() == {"Repository", "Issues", "Changelog"}
    assert all(url.startswith(f"{REPOSITORY}") for url in addresses.values())
    assert "https://" not in (HOUSE / "pyproject.toml").read_text("utf-8")


def test_an_installed_wheel_has_every_command_and_trains(built: Path, tmp_path: Path) -> None:
    """The dependencies come from this environment, whose link to the checkout is not followed."""
    run(sys.executable, "-m", "venv", "--without-pip", "fresh", folder=tmp_path)
    python, commands = tmp_path / "fresh/bin/python", tmp_path / "fresh/bin"
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--no-deps", wheel_of(built), folder=tmp_path)
    packages = Path(sysconfig.get_path("purelib", vars={"base": tmp_path / "fresh"}))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    origin = run(python, "-c", "import master; print(master.__file__)", folder=tmp_path)
    assert Path(origin.strip()).is_relative_to(tmp_path / "fresh")
    project = tomllib.loads((HOUSE / "pyproject.toml").read_text("utf-8"))["project"]
    for name in project["scripts"]:
        assert f"usage: {name}" in run(commands / name, "--help", folder=tmp_path)
    run(
        commands / "es-master",
        *("--env", "CartPole-v1", "--run", "wheel", "--workers", 1, "--generations", 1),
        *("--population", 8, "--final-episodes", 1, "--noise-dir", tmp_path / "noise"),
        folder=tmp_path,
    )
    assert '"generation": 0' in (tmp_path / "runs/wheel/metrics.jsonl").read_text()
