"""``es-play RUN --card DIR``: the policy as a Hugging Face model repository, made without network.

The form of README.md: https://huggingface.co/docs/hub/model-cards (metadata and model-index).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from es_queue.errors import RunFolderError, UsageError
from es_queue.export import export_bytes
from es_queue.numerics.fingerprint import array_digest
from es_queue.private_files import replacing
from es_queue.text import escape, sanitize
from workers.play.checkpoint import Checkpoint, load_checkpoint
from workers.play.export_policy import read_contents
from workers.play.report import format_return

TASK = "reinforcement-learning"
LONGEST_NAME = 200


def write_model_card(path: Path, folder: Path) -> None:
    """Write the folder; a policy without an ONNX form gets no ONNX file. Raises RunFolderError or
    UsageError in one sentence.
    """
    try:
        is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    except OSError as error:
        raise RunFolderError(f"{folder} cannot be read: {error.strerror}") from None
    if not is_free:
        raise UsageError(f"--card is {folder}, which exists already: name a new or empty folder")
    checkpoint = load_checkpoint(path)
    arrays, meta = read_contents(path)
    files = {"policy.npz": export_bytes(".npz", checkpoint.policy, arrays, meta)}
    note = ""
    try:
        files["policy.onnx"] = export_bytes(".onnx", checkpoint.policy, arrays, meta)
    except UsageError as error:
        note = f"; without policy.onnx: {error}"
    files["config.json"] = json.dumps(checkpoint.config.to_dict(), indent=2).encode() + b"\n"
    files["README.md"] = format_card(checkpoint, list(files)).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            with replacing(folder / name) as file:
                file.write(data)
    except OSError as error:
        raise RunFolderError(f"{folder} cannot be written: {error.strerror}") from None
    print(f"{escape(str(folder))}: {', '.join(files)}{note}")


def format_card(checkpoint: Checkpoint, files: list[str]) -> str:
    config = checkpoint.config
    env, run = sanitize(config.task, LONGEST_NAME), sanitize(checkpoint.run, LONGEST_NAME)
    metadata: dict[str, Any] = {
        "library_name": "es-queue",
        "pipeline_tag": TASK,
        "tags": [env, config.strategy, TASK, "evolution-strategies"],
    }
    lines = [f"# {env}, trained with es-queue", ""]
    if score := format_score(checkpoint.evaluation):
        metadata["model-index"] = [model_index(run, env, score)]
        episodes = finite_number((checkpoint.evaluation or {}).get("eval_episodes"))
        over = "in episodes" if episodes is None else f"over {episodes:.0f} episodes"
        lines += [f"Mean return: {score} {over} that played no part in training."]
    lines += [
        f"Run `{run}`: strategy {config.strategy}, policy {config.policy_name}, seed "
        f"{config.seed}. Digest of this policy's parameters alone: "
        f"`{array_digest(checkpoint.policy.parameters)}` (the run's digest covers all that "
        "its last generation published).",
        "",
        *(f"- `{name}`" for name in files),
        "",
        "```sh",
        "es-play policy.npz",
        "```",
        "",
    ]
    # A JSON value is a YAML value too.
    header = [f"{name}: {json.dumps(value)}" for name, value in metadata.items()]
    return "\n".join(["---", *header, "---", *lines])


def format_score(evaluation: dict[str, Any] | None) -> str:
    """``mean +/- deviation``, empty if the final evaluation was not played."""
    figures = [(evaluation or {}).get(name) for name in ("eval_mean", "eval_std")]
    mean, deviation = map(finite_number, figures)
    if mean is None or deviation is None:
        return ""
    return f"{format_return(mean)} +/- {format_return(deviation)}"


def finite_number(value: object) -> float | None:
    """A value of someone else's file, if it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def model_index(run: str, env: str, score: str) -> dict[str, Any]:
    result = {
        "task": {"type": TASK, "name": TASK},
        "dataset": {"name": env, "type": env},
        "metrics": [{"type": "mean_reward", "name": "mean_reward", "value": score}],
    }
    return {"name": run, "results": [result]}
