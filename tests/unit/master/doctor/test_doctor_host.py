"""The doctor's checks of this host and of environments, which it tries in processes of
their own.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from es_queue.config.run_config import RunConfig
from es_queue.numerics.noise_table import NoiseTable
from master.doctor import host as doctor_host
from master.doctor.finding import FAILED, OK, WARNING
from master.doctor.host import probe_environments

# --- this host


def test_packages_that_others_shadow_are_named() -> None:
    here = doctor_host.package_folders()
    assert doctor_host.check_packages(here, here).state == OK
    for found, seen in (
        ({**here, "workers": Path("/x/workers")}, here),
        (here, {**here, "workers": Path("/x/workers")}),
    ):
        one = doctor_host.check_packages(found, seen)
        assert one.state == FAILED and "/x/workers" in one.text and "'workers'" in one.text
    assert "nowhere" in doctor_host.check_packages({**here, "master": None}, here).text


def test_two_distributions_of_box2d_come_with_the_lines_that_mend_them() -> None:
    one = doctor_host.check_box2d("box2d 2.3.10 and box2d-py 2.3.5")
    assert (
        one.state == WARNING
        and "\npip uninstall --yes box2d-py\npip install --force-reinstall --no-deps box2d"
        in one.fix
    )
    assert doctor_host.check_box2d("box2d 2.3.10").state == OK
    missing = doctor_host.check_box2d("", "host-b")
    assert missing.state == WARNING and "host-b" in missing.text


def test_a_full_disk_is_named() -> None:
    one = doctor_host.check_disks(
        {"run folder": 10**6, "noise tables": 10**12, "temporary files": None}
    )
    assert one.state == WARNING and "run folder" in one.fix and "noise" not in one.fix
    assert doctor_host.check_disks({"run folder": 10**9}).state == OK


def test_noise_is_held_against_the_runs_and_against_its_own_digest(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    table = NoiseTable.open(2**12, tmp_path)
    look = doctor_host.read_noise_state(2**12, tmp_path)
    assert (
        doctor_host.check_noise(look, table.digest).state == OK
        and doctor_host.check_noise(look, None).state == OK
    )
    other = doctor_host.check_noise(look, "a" * 32)
    assert other.state == FAILED and table.digest in other.text and "a" * 32 in other.text
    assert table.path is not None
    data = bytearray(table.path.read_bytes())
    data[100] ^= 1
    table.path.chmod(0o600)
    table.path.write_bytes(data)
    damaged = doctor_host.check_noise(doctor_host.read_noise_state(2**12, tmp_path), table.digest)
    assert damaged.state == FAILED and "damaged" in damaged.text and str(table.path) in damaged.fix


# --- environments

PLAGUES = """
import os, signal, time
import gymnasium
from tests.tiny import Quad
class Crash(Quad):
    def reset(self, **_):
        os.kill(os.getpid(), signal.SIGSEGV)
class Leave(Quad):
    def reset(self, **_):
        os._exit(7)
class Hang(Quad):
    def reset(self, **_):
        time.sleep(1000)
class Loud(Quad):
    def reset(self, **rest):
        os.write(1, b"x" * 10**6); os.write(2, b"y" * 10**6)
        return super().reset(**rest)
for one in (Crash, Leave, Hang, Loud):
    gymnasium.register(one.__name__ + "-v0", one, max_episode_steps=5)
"""


@pytest.fixture
def plagues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plagues.py").write_text(PLAGUES)
    monkeypatch.setenv("ES_QUEUE_ALLOW", "plagues")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[4]))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("plagues")
def test_an_environment_that_crashes_or_hangs_does_not_take_the_doctor_with_it() -> None:
    began = time.monotonic()
    names = ("Crash", "Leave", "Loud", "Hang", "None")
    found = probe_environments([RunConfig(env=f"plagues:{name}-v0") for name in names], seconds=8.0)
    by_name = dict(zip(names, found, strict=True))
    assert (
        "SIGSEGV" in by_name["Crash"].error
        and "code 7" in by_name["Leave"].error
        and "hangs" in by_name["Hang"].error
    )
    assert "has no environment 'None-v0'" in by_name["None"].error
    assert by_name["Loud"].error == "" and "3 observations" in by_name["Loud"].description
    assert time.monotonic() - began < 60
