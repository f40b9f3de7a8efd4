"""Exports: each built-in policy gives the same actions in ONNX and in torch, with normalisation
and action map inside.
"""

from __future__ import annotations

import importlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_queue.config.run_config import RunConfig
from es_queue.environments.interface import ActionSpec
from es_queue.errors import UsageError
from es_queue.export import export_bytes
from es_queue.files import read_npz
from es_queue.policies import make_policy
from es_queue.policies.actions import ActionMap
from es_queue.policies.saved_policy import SavedPolicy, load_policy
from master.loop.checkpoint import Checkpoints
from tests.cases import each_case
from tests.memory import quick_config, run_ring
from workers.es_play import main

pytest.importorskip("torch", reason="pip install 'es-queue[torch]'")
onnx: Any = pytest.importorskip("onnx", reason="pip install 'es-queue[onnx]'")
pytest.importorskip("onnxscript", reason="pip install 'es-queue[onnx]'")
onnxruntime: Any = pytest.importorskip("onnxruntime", reason="pip install onnxruntime")

INFINITE = float("inf")
ACTIONS = {
    "box": ActionSpec("box", (2,), (-1.0, -INFINITE), (0.5, INFINITE)),
    "matrix": ActionSpec("box", (2, 2), (-1.0,) * 4, (0.5,) * 4),
    "bins": ActionSpec("box", (2,), (-1.0, 0.0), (0.5, 3.0), bins=(-1.0, -0.2, 0.1, 1.0)),
    "discrete": ActionSpec("discrete", sizes=(3,), starts=(5,)),
    "multidiscrete": ActionSpec("multidiscrete", (3,), sizes=(2, 4, 3), starts=(0, -1, 7)),
    "multibinary": ActionSpec("multibinary", (2, 2), sizes=(4,), starts=(0,)),
}
CONFIGS: dict[str, dict[str, Any]] = {
    "linear": {},
    "unclipped": {"obs_clip": 0.0},
    "bare": {"obs_norm": False},
    "some numbers": {"observe": "6,0-3"},
    **{
        activation: {"policy": "mlp", "hidden": (16, 8), "activation": activation}
        for activation in ("tanh", "relu", "selu", "elu", "lrelu")
    },
    "without biases": {"policy": "mlp", "hidden": (16, 8), "biases": False},
    "virtual": {"policy": "mlp", "hidden": (16, 8), "batch_norm": "virtual", "obs_norm": False},
    **{cell: {"policy": cell, "hidden": (8, 5)} for cell in ("rnn", "lstm", "gru")},
}
CASES = [
    *((name, "box") for name in CONFIGS),
    *(("tanh", action) for action in ACTIONS if action != "box"),
]
SIZE = 7


def saved_policy(
    config: dict[str, Any], action: ActionSpec, size: int = SIZE, shape: tuple[int, ...] = ()
) -> tuple[SavedPolicy, dict[str, Any], dict[str, Any]]:
    """A policy whose every bit counts, with its arrays and its meta."""
    draw, settings = np.random.default_rng(4), RunConfig(env="Any-v0", **config)
    policy = make_policy(settings, size, action, shape)
    parameters = (
        policy.initial(3, "normal")
        if policy.size > 5000
        else draw.normal(0, 0.5, policy.size).astype(np.float32)
    )
    arrays = {
        "parameters": parameters,
        "obs_mean": draw.normal(size=size).astype(np.float32),
        "obs_std": np.exp(draw.normal(size=size)).astype(np.float32),
    }
    if settings.has_virtual_norm:
        arrays["reference"] = draw.normal(size=(12, size)).astype(np.float32)
    meta = {
        "format": 1,
        "config": settings.to_dict(),
        "observation_size": size,
        "action": action.to_dict(),
        "observation_shape": list(shape),
        "observation": None,
        "state": {"large": 1},
    }
    return SavedPolicy(arrays, meta), arrays, meta


def by_onnx(data: bytes) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    return lambda *given: session.run(None, dict(zip(names, given, strict=True)))


def by_torch(data: bytes) -> Any:
    torch: Any = importlib.import_module("torch")
    module = torch.export.load(io.BytesIO(data)).module()
    return lambda *given: [one.numpy() for one in module(*map(torch.tensor, given))]


RUNNERS = {".onnx": by_onnx, ".pt2": by_torch}


def compared(
    ending: str,
    config: dict[str, Any],
    action: ActionSpec,
    count: int,
    size: int = SIZE,
    shape: tuple[int, ...] = (),
    seed: int = 6,
) -> float:
    """The largest difference of raw outputs (and memory) over ``count`` observations in episodes of
    10 steps; actions must fit them.
    """
    saved, arrays, meta = saved_policy(config, action, size, shape)
    run, draw = (
        RUNNERS[ending](export_bytes(ending, saved, arrays, meta)),
        np.random.default_rng(seed),
    )
    rows = max(1, count // 10)
    bound = saved.policy.bind(np.repeat(saved.parameters[None], rows, axis=0))
    memory, worst = (
        [np.zeros((rows, saved.policy.memory_size), np.float32)]
        if saved.policy.memory_size
        else [],
        0.0,
    )
    for _ in range(count // rows):
        seen = (arrays["obs_mean"] + 3 * arrays["obs_std"] * draw.normal(size=(rows, size))).astype(
            np.float32
        )
        expected = bound(saved.statistics.normalize(seen) if saved.config.obs_norm else seen)
        raw, acted, *memory = run(seen, *memory)
        assert raw.dtype == np.float32 and raw.shape == expected.shape
        own = ActionMap(action, saved.config.action_bound).act(raw)
        assert (
            acted.shape == own.shape
            and acted.dtype == own.dtype
            and np.allclose(acted, own, atol=1e-6)
        )
        worst = max(
            worst,
            float(abs(raw - expected).max()),
            *(float(abs(one - bound.memory).max()) for one in memory),
        )
        memory = [bound.memory.copy()] if memory else []
    return worst


@each_case(("config", "action"), CASES)
def test_a_policy_gives_the_same_actions_after_export_to_torch(config: str, action: str) -> None:
    assert compared(".pt2", CONFIGS[config], ACTIONS[action], 100) < 1e-5


@each_case(
    ("config", "action"),
    [("lstm", "box"), ("gru", "bins"), ("lrelu", "multidiscrete"), ("some numbers", "multibinary")],
)
def test_a_policy_gives_the_same_actions_after_export_to_onnx(config: str, action: str) -> None:
    assert compared(".onnx", CONFIGS[config], ACTIONS[action], 100) < 1e-5


@each_case("ending", [".onnx", ".pt2"])
def test_a_number_that_observe_leaves_out_may_be_none(ending: str) -> None:
    saved, arrays, meta = saved_policy(CONFIGS["some numbers"], ACTIONS["box"])
    seen = np.ones((2, SIZE), np.float32)
    seen[:, 5] = np.nan, np.inf
    raw, _ = RUNNERS[ending](export_bytes(ending, saved, arrays, meta))(seen)
    assert np.isfinite(raw).all() and np.array_equal(raw[0], raw[1])


IMAGES = {
    "nature": (4, 84, 84),
    "uber": (4, 84, 84),
    "uber-large": (4, 84, 84),
    "cshenton": (210, 160, 3),
    "conv-lstm": (1, 42, 42),
}


@each_case(("policy", "ending"), [("cshenton", ".onnx"), *((name, ".pt2") for name in IMAGES)])
def test_a_policy_on_images_gives_the_same_actions_after_export(policy: str, ending: str) -> None:
    shape = IMAGES[policy]
    assert (
        compared(
            ending,
            {"policy": policy, "obs_norm": False},
            ACTIONS["discrete"],
            20,
            int(np.prod(shape)),
            shape,
        )
        < 2e-5
    )


def test_a_normalised_policy_on_images_gives_the_same_actions_after_export() -> None:
    config = {"policy": "uber", "obs_norm": False, "batch_norm": "virtual"}
    assert compared(".pt2", config, ACTIONS["discrete"], 20, 4 * 42 * 42, (4, 42, 42)) < 2e-4


def test_a_box_bounded_by_tanh_is_exported_with_its_bound() -> None:
    assert compared(".pt2", {"action_bound": "tanh"}, ACTIONS["matrix"], 100) < 1e-5


def test_a_model_names_its_run_and_digest() -> None:
    model = onnx.load_from_string(export_bytes(".onnx", *saved_policy({}, ACTIONS["discrete"])))
    told = {one.key: one.value for one in model.metadata_props}
    assert told["env"] == "Any-v0" and told["action"] == "discrete" and len(told["digest"]) == 32
    assert [one.name for one in model.graph.output] == ["raw", "action"]


def test_an_exported_npz_is_read_by_load_policy(tmp_path: Path) -> None:
    saved, arrays, meta = saved_policy(CONFIGS["tanh"], ACTIONS["box"])
    (tmp_path / "policy.npz").write_bytes(export_bytes(".npz", saved, arrays, meta))
    found, about = read_npz(tmp_path / "policy.npz")
    assert set(found) == set(arrays) and "state" not in about
    seen = np.linspace(-1, 1, SIZE)
    assert load_policy(tmp_path / "policy.npz").act(seen).tobytes() == saved.act(seen).tobytes()


def test_es_play_exports_a_run_by_the_ending_of_the_files_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_ring(
        quick_config(
            population=4,
            generations=1,
            eval_every=1,
            eval_episodes=1,
            final_episodes=2,
            target_reward="none",
        ),
        checkpoints=Checkpoints(tmp_path),
    )
    for name in ("policy.onnx", "policy.npz"):
        assert main([str(tmp_path), "--export", str(tmp_path / name)]) == 0
        assert f"{name}: the policy of " in capsys.readouterr().out
    assert by_onnx((tmp_path / "policy.onnx").read_bytes())(np.zeros((3, 4), np.float32))[
        1
    ].shape == (3,)
    assert (
        main([str(tmp_path / "policy.npz")]) == 0
        and "equal to the recorded" in capsys.readouterr().out
    )
    assert main([str(tmp_path), "--export", str(tmp_path / "policy.h5")]) == 2
    assert "es-queue cannot export to .h5: use FILE.json" in capsys.readouterr().err
    assert main([str(tmp_path), "--export", str(tmp_path / "nowhere" / "policy.npz")]) == 6


def test_a_policy_of_your_own_is_exported_only_to_npz() -> None:
    saved, arrays, meta = saved_policy(
        {"policy": "tests.unit.es_queue.policies.test_custom_policy:Plain"}, ACTIONS["box"]
    )
    with pytest.raises(UsageError, match=r"cannot be exported to ONNX or torch: use FILE\.npz"):
        export_bytes(".onnx", saved, arrays, meta)
    assert export_bytes(".npz", saved, arrays, meta)
