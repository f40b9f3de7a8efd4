"""Other accounts of the host: links that they plant are not followed, and a run's folder is closed
to them.
"""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from es_queue.errors import EsQueueError
from master.loop.checkpoint import write_atomically
from master.run.launch import prepare_folder
from tests.integration.processes import BIN


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_bytes(b"precious")
    return path


def test_a_link_in_the_place_of_a_checkpoints_temporary_file_is_not_followed(
    tmp_path: Path, victim: Path
) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / f".best.npz.{os.getpid()}").symlink_to(victim)
    write_atomically(folder / "best.npz", b"a checkpoint")
    assert victim.read_bytes() == b"precious"
    assert (folder / "best.npz").read_bytes() == b"a checkpoint" and not (
        folder / "best.npz"
    ).is_symlink()


# --- who may enter a run's folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize(("shared", "wanted"), [(False, 0o700), (True, 0o2770)])
@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_runs_folder_is_its_users_or_its_groups(
    shared: bool, wanted: int, umask: int, tmp_path: Path
) -> None:
    before = os.umask(umask)
    try:
        prepare_folder(tmp_path / "runs" / "r", shared)
    finally:
        os.umask(before)
    assert mode(tmp_path / "runs" / "r") == wanted
    assert mode(tmp_path / "runs") == 0o775 & ~umask


@pytest.mark.parametrize(
    ("bits", "shared", "words"),
    [
        (0o777, False, "go-w"),
        (0o777, True, "o-w"),
        (0o775, False, "--shared"),
        (0o757, True, "o-w"),
    ],
)
def test_a_folder_that_others_may_write_is_refused_in_one_sentence(
    bits: int, shared: bool, words: str, tmp_path: Path
) -> None:
    run_dir = tmp_path / "r"
    run_dir.mkdir()
    (run_dir / "config.json").write_text("{}")
    run_dir.chmod(bits)
    for _ in range(2):
        with pytest.raises(EsQueueError, match=words):
            prepare_folder(run_dir, shared)
    assert mode(run_dir) == bits


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    run_dir = tmp_path / "r"
    run_dir.mkdir()
    os.chown(run_dir, 12345, 12345)
    with pytest.raises(EsQueueError, match="another user"):
        prepare_folder(run_dir)


@pytest.mark.parametrize("how", ["own", "strangers", "linked"])
def test_a_folder_that_others_can_replace_is_refused_in_one_sentence(
    how: str, tmp_path: Path
) -> None:
    """Another account could rename a folder above the run's, and put its own in the place."""
    above = place = tmp_path / "above"
    above.mkdir()
    if how == "linked":
        place = tmp_path / "link"
        place.symlink_to(above)
    else:
        above.chmod(0o777 if how == "own" else 0o1777)
    if os.geteuid() == 0:
        os.chown(place, 12345 if how != "own" else 0, 12345, follow_symlinks=False)
    elif how != "own":
        pytest.skip("only root can make a stranger's folder")
    words = "--env CartPole-v1 --generations 1 --workers 1 --run-dir"
    done = subprocess.run(
        [str(BIN / "es-master"), *words.split(), str(place / "runs/r")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = f"can replace run-dir {place / 'runs/r'}, because {place} "
    said += "is a link of another user" if how == "linked" else "can be written by all"
    if how == "own" and os.geteuid() == 0:  # a volume of a container
        assert done.returncode == 0 and said in done.stdout + done.stderr
    else:
        assert done.returncode == 6 and said in done.stderr and len(done.stderr.splitlines()) == 1
        assert not list(above.iterdir())


@pytest.mark.parametrize("shared", [False, True])
def test_no_file_of_a_run_is_open_to_other_accounts(shared: bool, tmp_path: Path) -> None:
    words = (
        "--env CartPole-v1 --generations 2 --population 4 --eval-every 0 --final-episodes 1 "
        "--workers 1 --run r --quiet"
    )
    done = subprocess.run(
        [str(BIN / "es-master"), *words.split(), *(["--shared"] if shared else [])],
        cwd=tmp_path,
        umask=0o000,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run_dir = tmp_path / "runs" / "r"
    private = [run_dir / "redis"]
    for path in (run_dir, *run_dir.rglob("*")):
        assert not mode(path) & 0o007, path
        if not shared or any(path.is_relative_to(one) for one in private):
            within = shared and path not in private  # closed by the folder that it is in
            assert within or not mode(path) & 0o077, path
        else:
            group = 0o070 if path.is_dir() else 0o060
            assert mode(path) & group == group, path


@pytest.mark.parametrize("name", ["replay", "checkpoints"])
def test_a_folder_of_a_run_that_is_a_link_is_refused_and_nothing_is_written_there(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from master.cli.main import main

    elsewhere, run = tmp_path / "elsewhere", tmp_path / "runs" / "r"
    elsewhere.mkdir()
    (elsewhere / "00000001.npz").write_text("mine")
    run.mkdir(parents=True, mode=0o700)
    (run / name).symlink_to(elsewhere)
    words = ["--env", "CartPole-v1", "--generations", "1", "--run-dir", str(run)]
    assert main([*words, "--run", "r", "--workers", "0"]) == 6
    assert f"{run / name} is a link" in capsys.readouterr().err
    assert [path.name for path in elsewhere.iterdir()] == ["00000001.npz"]
