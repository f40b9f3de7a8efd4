"""A package that is not installed is named, with the command that installs it."""

from __future__ import annotations

import pytest

from tests.integration.processes import BIN, Processes

TRAIN = ("es-master", "--env", "CartPole-v1")
PLAY = ("es-play", "--pretrained", "CartPole-v1", "--episodes", "1")


@pytest.mark.parametrize(
    ("package", "extra", "words"),
    [
        ("mujoco", "mujoco", ("es-master", "--env", "HalfCheetah-v5")),
        ("ale_py", "atari", ("es-master", "--env", "ALE/Pong-v5")),
        ("tensorboardX", "tensorboard", (*TRAIN, "--tensorboard")),
        ("wandb", "wandb", (*TRAIN, "--track", "wandb")),
        ("mlflow", "mlflow", (*TRAIN, "--track", "mlflow")),
        ("PIL", "video", (*TRAIN, "--video-every", "5")),
        ("imageio_ffmpeg", "video", (*PLAY, "--record", "a.mp4")),
        ("onnxscript", "onnx", (*PLAY, "--export", "a.onnx")),
        ("torch", "torch", (*PLAY, "--export", "a.pt2")),
        ("matplotlib", "plot", ("es-plot", ".")),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_package_that_is_not_installed_is_named(
    package: str, extra: str, words: tuple[str, ...], processes: Processes
) -> None:
    text = f"import sys\nsys.modules[{package!r}] = None\n"
    (processes.folder / "sitecustomize.py").write_text(text)
    (processes.folder / "config.json").write_text('{"env": "CartPole-v1"}')
    (processes.folder / "metrics.jsonl").write_text('{"generation": 0, "env_steps": 1}\n')
    program, *rest = words
    said = processes.start(BIN / program, *rest, PYTHONPATH=str(processes.folder))
    assert said.wait() in (2, 5), said.said()
    assert f"pip install 'es-queue[{extra}]'" in said.said()
    assert "Traceback" not in said.said()
