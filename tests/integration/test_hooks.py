"""Hooks of the user's own: each event in order, and a hook that fails costs only itself."""

from __future__ import annotations

import json
import sys

from tests.integration.processes import Processes, flags

HOOKS = """
import json
from es_queue import Hook

class Writer(Hook):
    def write(self, event, number):
        with open("events", "a") as file:
            file.write(json.dumps([event, number]) + "\\n")

    def on_start(self, run):
        self.write("start", run["config"]["seed"])

    def on_generation(self, figures):
        self.write("generation", figures["generation"])

    def on_evaluation(self, figures):
        self.write("evaluation", figures["generation"])

    def on_end(self, summary):
        self.write("end", summary["generation"])

class Broken(Hook):
    def on_generation(self, figures):
        raise ValueError("a word of its own")
"""
TRAINED = {
    "env": "CartPole-v1",
    "seed": 7,
    "population": 8,
    "generations": 2,
    "eval_every": 2,
    "eval_episodes": 2,
    "final_episodes": 2,
    "target_reward": "none",
    "noise_size": 2**18,
}
EVENTS = [
    *(["start", 7], ["generation", 0], ["evaluation", 0], ["generation", 1]),
    *(["generation", 2], ["evaluation", 2], ["end", 2]),
]


def events(processes: Processes) -> list[list[object]]:
    return [json.loads(line) for line in (processes.folder / "events").read_text().splitlines()]


def test_a_hook_is_called_at_each_event_and_one_that_fails_is_named_once(
    processes: Processes,
) -> None:
    (processes.folder / "own.py").write_text(HOOKS)
    words = ["--hook", "own:Broken", "--hook", "own:Writer", "--workers", 1]
    run = processes.master(*flags(TRAINED), *words)
    assert run.wait() == 0, run.said()
    assert events(processes) == EVENTS
    named = "the hook own:Broken failed in on_generation (ValueError: a word of its own) (own.py"
    assert run.said().count(named) == run.said().count("own:Broken") == 1


def test_train_takes_hooks(processes: Processes) -> None:
    (processes.folder / "own.py").write_text(HOOKS)
    program = f"""
from es_queue import RunConfig, train
from own import Writer

train(RunConfig(**{TRAINED!r}), workers=1, hooks=[Writer()])
"""
    (processes.folder / "program.py").write_text(program)
    run = processes.start(sys.executable, "program.py")
    assert run.wait() == 0, run.said()
    assert events(processes) == EVENTS
