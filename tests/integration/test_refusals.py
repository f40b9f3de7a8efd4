"""What cannot be is refused in one sentence, with the exit code of its kind, and without a
traceback.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from tests.integration.processes import (
    BIN,
    CARTPOLE,
    CLOCKS,
    Master,
    Processes,
    Started,
    flags,
    wait_for,
)

FORGETFUL = """
import gymnasium, numpy, random

class Forgetful(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def look(self):
        return numpy.array([random.random(), 0], numpy.float32)

    def reset(self, *, seed=None, options=None):
        return self.look(), {}

    def step(self, action):
        return self.look(), 1.0, False, False, {}

gymnasium.register("Forgetful-v0", lambda **_: Forgetful(), max_episode_steps=20)
"""


ENDLESS = """
import gymnasium, numpy, pathlib, time

class Endless(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return numpy.zeros(2, numpy.float32), {}

    def step(self, action):
        self.steps += 1  # later than any check of it
        while self.steps > 100 and pathlib.Path("held").exists():
            time.sleep(0.01)
        return numpy.zeros(2, numpy.float32), 1.0, False, False, {}

gymnasium.register("Endless-v0", lambda **_: Endless(), max_episode_steps=200)
"""


def sentence_of(process: Started, code: int) -> str:
    """The one sentence of a refusal, checked for form; what follows the command's name."""
    assert process.wait() == code, process.said()
    text = process.err.read_text()
    assert text.startswith("es-master: "), text
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert "Traceback" not in text
    return text.removeprefix("es-master: ").rstrip("\n")


@pytest.mark.slow
def test_an_environment_that_does_not_repeat_itself(processes: Processes) -> None:
    (processes.folder / "forgetful.py").write_text(FORGETFUL)
    process = processes.master(
        *flags({**CARTPOLE, "env": "forgetful:Forgetful-v0"}), "--workers", 1
    )
    assert sentence_of(process, 5) == (
        f"no worker can join; the one on {platform.node()} reports: "
        "forgetful:Forgetful-v0 does not repeat itself: the same seed and actions gave different "
        "episodes; "
        "seed all its randomness in reset, or use --allow-nondeterministic and lose reproducible "
        "results"
    )


def test_a_second_master_on_a_live_run(
    processes: Processes,
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
) -> None:
    start_master("live", CARTPOLE)
    wait_for(lambda: redis_client.exists("es:live:checkpoint"), "the first master publishes")
    for words in (("--resume", "live"), (*flags(CARTPOLE), "--run", "live")):
        said = sentence_of(processes.master(*words, url=valkey_url), 4)
        assert said.startswith("run live is live: ")
        assert said.endswith("leads it; stop that es-master first, or start another run")


# --- servers


def test_a_server_that_is_not_there(processes: Processes) -> None:
    process = processes.master(*flags(CARTPOLE), url="redis://127.0.0.1:1/0")
    said = sentence_of(process, 3)
    assert said.startswith("Redis at redis://127.0.0.1:1/0 cannot be reached (")
    assert said.endswith("); start it, or correct RQ_REDIS_URL or --redis-url")
    # Another program's variable, which also keeps the private server away, is named.
    process = processes.master(*flags(CARTPOLE), REDIS_URL="redis://127.0.0.1:1/0")
    named = "Redis at redis://127.0.0.1:1/0, which REDIS_URL names, cannot be reached ("
    assert sentence_of(process, 3).startswith(named)


@contextmanager
def configured(client: redis.Redis, **settings: str) -> Iterator[None]:
    """Settings of the shared server, put back whatever happens."""
    names = {name: name.replace("_", "-") for name in settings}
    before = {names[name]: client.config_get(names[name])[names[name]] for name in settings}
    for name, value in settings.items():
        client.config_set(names[name], value)
    try:
        yield
    finally:
        for name, value in before.items():
            client.config_set(name, value)


def test_a_password_that_is_wrong_or_missing(
    processes: Processes, valkey_url: str, redis_client: redis.Redis
) -> None:
    wrong = valkey_url.replace("unix://", "unix://:open-sesame@")
    redis_client.ping()
    with configured(redis_client, requirepass="swordfish"):
        said = sentence_of(processes.master(*flags(CARTPOLE), RQ_REDIS_URL=wrong), 3)
        assert "refused the user or password (" in said and said.endswith(
            "); check RQ_REDIS_URL, --redis-url or --redis-password-file"
        )
        assert "open-sesame" not in said
        said = sentence_of(processes.master(*flags(CARTPOLE), url=valkey_url), 3)
        assert said.startswith(
            f"Redis at {valkey_url} requires a password: put it in the URL, in RQ_REDIS_URL, or in "
            "a file ("
        )


def test_a_server_that_would_evict_keys(
    processes: Processes, valkey_url: str, redis_client: redis.Redis
) -> None:
    with configured(redis_client, maxmemory="200mb", maxmemory_policy="allkeys-lru"):
        said = sentence_of(processes.master(*flags(CARTPOLE), url=valkey_url), 3)
    assert said == (
        f"Redis at {valkey_url} has maxmemory-policy allkeys-lru, which would silently drop "
        "parameters and claims: set it to noeviction"
    )


def test_no_refusal_leaves_a_folder_behind(processes: Processes) -> None:
    process = processes.master(*flags(CARTPOLE), "--run", "early", "--population", 7)
    sentence_of(process, 2)
    assert [
        one.name for one in Path(processes.folder).iterdir() if not one.name.startswith("process-")
    ] == []


def test_a_first_episode_that_does_not_end_is_said_with_what_ends_it(processes: Processes) -> None:
    (processes.folder / "endless.py").write_text(ENDLESS)
    held = processes.folder / "held"
    held.touch()
    given = {**CARTPOLE, "env": "endless:Endless-v0", "generations": 1, "step_limit": "env"}
    run = processes.master(*flags(given), "--workers", 1, clocks=replace(CLOCKS, silence=0.3))
    sentence = "no episode has ended in 0.3 s: if those of an untrained policy are long, --step-lim"
    wait_for(lambda: sentence in run.said(), "the hint")
    held.unlink()
    assert run.wait() == 0, run.said()
    assert run.said().count("--step-limit") == 1


@pytest.mark.skipif(not shutil.which("prlimit"), reason="needs prlimit and setpriv")
def test_a_limit_of_processes_is_named_with_its_figure(processes: Processes) -> None:
    caps = "-all,+dac_override"
    # The superuser has no such limit.
    user = ("setpriv", "--reuid=65534", "--clear-groups", f"--inh-caps={caps}")
    user = (*user, f"--ambient-caps={caps}", f"--bounding-set={caps}")
    folder = str(processes.folder / "own")
    run = processes.start(
        *("prlimit", "--nproc=1", *(user if os.geteuid() == 0 else ())),
        *(BIN / "es-master", "--env", "CartPole-v1", "--workers", 1),
        HOME=folder,
        ES_QUEUE_NOISE_DIR=folder,
    )
    assert run.wait() in (2, 3, 6), run.said()
    assert "start no more processes and threads here (ulimit -u is 1;" in run.said()
    assert "Traceback" not in run.said()


def test_a_folder_that_the_locale_cannot_write_is_refused_and_can_be_looked_at(
    processes: Processes,
) -> None:
    folder = processes.folder / "Übung"
    (folder / "runs" / "one" / "redis").mkdir(mode=0o700, parents=True)
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    master = processes.master("--env", "CartPole-v1", cwd=folder, **ascii_only)
    assert "whose name is not UTF-8" in sentence_of(master, 3)
    words = (BIN / "es-status", "--run-dir", "runs/one")
    status = processes.start(*words, cwd=folder, **ascii_only)
    assert status.wait() == 3 and "use a UTF-8 locale" in status.said(), status.said()


def test_what_an_objective_returns_is_named_with_what_to_return(processes: Processes) -> None:
    (processes.folder / "fn.py").write_text("import numpy\n\ndef f(x):\n    return x[:1]\n")
    run = processes.master("--objective", "fn:f", "--parameters", 2)
    assert run.wait() == 5
    assert "it returned ndarray of shape [1], but must return a number, such as" in run.said()
