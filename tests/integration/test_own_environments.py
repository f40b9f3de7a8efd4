"""Environments of the user's own: whoever starts the worker says what it may import."""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Callable

import pytest
import redis

from es_queue.user_code import ALLOW
from tests.integration.processes import BIN, Master, Processes, Seen, flags, wait_for

LOOSE = """
from pathlib import Path
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

Path(__file__).with_name("imported").touch()

class Loose(CartPoleEnv):
    def reset(self, **options):
        print("a word of the environment's own")
        return super().reset(**options)

gymnasium.register("Loose-v0", Loose, max_episode_steps=20, reward_threshold=900.5)
"""
#: A process that is forked from one that has played it has the pool, but not its threads.
POOL = """
from concurrent.futures import ThreadPoolExecutor
from gymnasium.envs.classic_control import CartPoleEnv

THREADS = ThreadPoolExecutor(2)

class Pool(CartPoleEnv):
    def reset(self, **options):
        return THREADS.submit(super().reset, **options).result()
"""
#: Reports a success in every step, and the number of its steps only with the last one.
GOAL = """
import gymnasium, numpy
from gymnasium.envs.classic_control import CartPoleEnv

class Goal(CartPoleEnv):
    def step(self, action):
        seen, reward, ended, _, _ = super().step(action)
        self.count = getattr(self, "count", 0) + 1
        about = {"is_success": numpy.bool_(self.count > 8), "words": "no number"}
        if ended:
            about["count"] = self.count
        return seen, reward, ended, False, about
"""
#: Nothing can be learnt: the reward is chance.
LUCK = """
import gymnasium, numpy

class Luck(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return numpy.zeros(1, numpy.float32), {}

    def step(self, action):
        return numpy.zeros(1, numpy.float32), float(self.np_random.normal()), True, False, {}
"""
TINY = {
    "seed": 1,
    "population": 8,
    "generations": 3,
    "eval_every": 0,
    "final_episodes": 2,
    "noise_size": 2**18,
}


def test_the_local_workers_of_an_es_master_import_what_its_command_names_and_json_is_only_json(
    processes: Processes,
) -> None:
    (processes.folder / "loose.py").write_text(LOOSE)
    words = [*flags({**TINY, "env": "loose:Loose-v0"}), "--workers", 1, "--json"]
    run = processes.master(*words, "--run", "own")
    assert run.wait() == 0, run.said()
    lines = [json.loads(line) for line in run.out.read_text().splitlines()]
    assert lines[-1]["state"] == "finished"
    play = processes.start(BIN / "es-play", "own", "--episodes", 2, "--json", "--trust")
    assert play.wait() == 0, play.said()
    assert json.loads(play.out.read_text())["episodes"] == 2
    assert "a word of the environment's own" in play.err.read_text()
    status = processes.start(BIN / "es-status", "own", "--json")
    assert status.wait() == 10 and json.loads(status.out.read_text())["target"] == 900.5


def test_what_an_environment_reports_at_the_ends_of_episodes_is_averaged_and_shown(
    processes: Processes,
) -> None:
    (processes.folder / "goal.py").write_text(GOAL)
    asked = {**TINY, "env": "goal:Goal", "eval_every": 1, "info": "is_success,count,words"}
    run = processes.master(*flags(asked), "--workers", 1, "--run", "goal")
    assert run.wait() == 0, run.said()
    assert "no training episode ended with a number words" in run.said()

    folder = processes.folder / "runs" / "goal"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["eval_info_count"] == summary["eval_mean"]  # a reward of 1 in each step
    assert 0 < summary["eval_info_is_success"] <= 1
    assert summary["eval_info"] in run.said()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["info_count"] == pytest.approx(lines[0]["return_mean"], rel=1e-6)
    assert lines[0]["eval_info_count"] == lines[0]["eval_mean"]

    play = processes.start(BIN / "es-play", "goal", "--json", "--trust")
    assert play.wait() == 0, play.said()
    played = json.loads(play.out.read_text())["info"]
    assert played["count"] == summary["eval_mean"]
    shown = processes.start(BIN / "es-status", "goal", "--json")
    assert shown.wait() == 10
    assert json.loads(shown.out.read_text())["eval_info"] == summary["eval_info"]
    drawn = processes.start(BIN / "es-plot", "goal", "--info", "count", "--out", "count.svg")
    assert drawn.wait() == 0, drawn.said()
    assert "mean of count" in (processes.folder / "count.svg").read_text()


def test_a_run_without_progress_says_so_once_with_what_helps_most_often(
    processes: Processes,
) -> None:
    (processes.folder / "luck.py").write_text(LUCK)
    long = {"population": 4, "generations": 10**6, "eval_every": 5, "eval_episodes": 2, "seed": 3}
    values = {**TINY, "env": "luck:Luck", **long}
    run = processes.master(*flags(values), "--workers", 1, "--run", "luck")
    wait_for(lambda: "What helps most often" in run.said(), "the note")
    hints = "What helps most often: a layer (--policy mlp --hidden 16); a reward that rises"
    assert hints in run.said() and "My environment does not learn" in run.said()
    assert processes.start(BIN / "es-master", "--pause", "luck").wait() == 0  # it may have luck
    for words in ("luck", "--json"), ("luck", "--doctor"):
        shown = processes.start(BIN / "es-status", *words)
        shown.wait()
        assert "no evaluation has been better than generation" in shown.said()
        assert "a layer (--policy mlp" in " ".join(shown.said().split())
    run.signal(signal.SIGINT)
    assert run.wait() == 130
    assert run.said().count("no evaluation has been better than generation") == 1


@pytest.mark.parametrize("listen", [(), ("--listen", "127.0.0.1")], ids=["rq", "es-worker"])
def test_an_environment_with_a_thread_pool_of_its_module_trains(
    processes: Processes, listen: tuple[str, ...]
) -> None:
    (processes.folder / "pool.py").write_text(POOL)
    words = [*flags({**TINY, "env": "pool:Pool"}), "--workers", 1, *listen]
    run = processes.master(*words, "--run", "pool")
    assert run.wait() == 0, run.said()
    assert processes.living() == {}


def test_an_environment_that_hangs_is_named_and_ctrl_c_ends_the_command(
    processes: Processes,
) -> None:
    hang = "import time\nfrom gymnasium.envs.classic_control import CartPoleEnv\n"
    hang += "class Hang(CartPoleEnv):\n    def reset(self, **_):\n        time.sleep(1000)\n"
    (processes.folder / "hang.py").write_text(hang)
    run = processes.master("--env", "hang:Hang")
    wait_for(lambda: "waiting for hang:Hang: its first step" in run.said(), "it is named")
    run.signal(signal.SIGINT)
    assert run.wait() == 130 and run.err.read_text().count("\n") == 1
    assert processes.living() == {} and not (processes.folder / "runs").exists()


def test_a_worker_imports_nothing_loose_unless_its_operator_allows_it(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
    monkeypatch: object,
) -> None:
    (processes.folder / "loose.py").write_text(LOOSE)
    monkeypatch.syspath_prepend(processes.folder)  # type: ignore[attr-defined]
    seen = Seen(redis_client, "loose")
    run = start_master("loose", {**TINY, "env": "loose:Loose-v0"})
    wait_for(lambda: seen.progress().get("state") == "running", "the run begins")
    (processes.folder / "imported").unlink()  # the master's own import
    careful = processes.worker(valkey_url, **{ALLOW: "installed"})
    said = wait_for(
        lambda: [one for one in run.heard.notes if "custom code" in one],
        "the master says why the worker does not work",
    )
    assert (
        "the module loose, which is not allowed here" in said[0]
        and f"{ALLOW}=installed,loose" in said[0]
    )
    assert not (processes.folder / "imported").exists() and careful.process.poll() is None
    processes.worker(valkey_url, **{ALLOW: "loose"})
    assert run.summary()["state"] == "finished"


CHANGING = """
import gymnasium, numpy as np
class Arm(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (OBSERVATIONS,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (ACTIONS,), np.float32)
    def reset(self, *, seed=None, options=None):
        self.left = 5
        return np.zeros(OBSERVATIONS, np.float32), {}
    def step(self, action):
        self.left -= 1
        seen = np.zeros(OBSERVATIONS, np.float32)
        return seen, -float(abs(action).sum()), self.left == 0, False, {}
"""


def test_a_resume_names_what_has_changed_in_the_environment(processes: Processes) -> None:
    lengths = itertools.count(1)

    def write(observations: int, actions: int) -> None:
        text = CHANGING.replace("OBSERVATIONS", str(observations)).replace("ACTIONS", str(actions))
        # Python takes its cached code for a file of the same second and length.
        comment = "#" * next(lengths)
        (processes.folder / "arm.py").write_text(f"{text}\n{comment}\n")

    write(4, 2)
    settings = {**TINY, "env": "arm:Arm"}
    first = processes.master(*flags(settings), "--run", "arm", "--workers", 1)
    assert first.wait() == 0, first.said()
    for sizes, words in (
        ((6, 2), "the checkpoint has observations of 4 numbers, and now there are 6"),
        ((4, 3), "parameters, and now there are "),
    ):
        write(*sizes)
        again = processes.master("--resume", "arm", "--generations", 9, "--workers", 1, "--trust")
        assert again.wait() == 5, again.said()
        assert "arm:Arm or its policy has changed: " in again.said() and words in again.said()
    write(4, 2)
    again = processes.master("--resume", "arm", "--generations", 9, "--workers", 1, "--trust")
    assert again.wait() == 0, again.said()
