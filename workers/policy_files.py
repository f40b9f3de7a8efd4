"""The policies that es-play reads from files, and those that it writes: exports and model cards.

Importing this module loads numpy: fix the numeric environment first.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.environments.factory import make_reference_batch
from es_queue.errors import RunFolderError, UsageError
from es_queue.export import export_bytes
from es_queue.files import read_file, read_npz
from es_queue.numerics.fingerprint import array_digest
from es_queue.policies.saved_policy import POLICY_ARRAYS, REFERENCE, SavedPolicy
from es_queue.pretrained import training_command
from es_queue.private_files import replacing
from es_queue.seed_list import MAX_BYTES, format_seed_list, read_seed_list
from es_queue.strategies.map_elites_archive import read_archive
from es_queue.text import escape, sanitize
from es_queue.user_code import modules_named_by, require_trust

Contents = tuple[dict[str, Any], dict[str, Any]]
TASK = "reinforcement-learning"
LONGEST_NAME = 200


@dataclass(frozen=True)
class Elite:
    """An elite of an archive of MAP-Elites; ``fitness`` is of its own episodes in training.

    requested: the behaviour that the cell should contain; contains: whether it does
    """

    requested: list[float]
    contains: bool
    cell: int
    behaviour: list[float]
    fitness: float
    parameters: Any = field(repr=False)

    @property
    def about(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "parameters"}


@dataclass(frozen=True)
class Checkpoint:
    """A policy and its file's description.

    evaluation: the run's final one, None if it was not played; command: the command that made it;
    empty if unknown
    """

    path: Path
    config: RunConfig
    policy: SavedPolicy
    run: str
    generation: int | None
    evaluation: dict[str, Any] | None
    command: str


def load_checkpoint(path: Path, elite: Elite | None = None) -> Checkpoint:
    """The checkpoint or seed list at ``path``, with the policy of an ``elite`` of its archive."""
    arrays, meta = read_contents(path, elite)
    policy = load_policy_from(path, arrays, meta)
    generation, evaluation = meta.get("generation"), meta.get("evaluation")
    return Checkpoint(
        path=path,
        config=policy.config,
        policy=policy,
        run=str(meta.get("run", "unknown"))[:40],
        generation=generation if isinstance(generation, int) else None,
        evaluation=evaluation if isinstance(evaluation, dict) else None,
        command=training_command(meta),
    )


def read_contents(path: Path, elite: Elite | None = None) -> Contents:
    """The arrays and the meta of a checkpoint or seed list; those of an ``elite`` of its archive,
    which no evaluation played.
    """
    if path.suffix in (".onnx", ".pt2"):
        raise RunFolderError(
            f"{path} is an export for other programs: play the run, its checkpoint, or an export "
            "to FILE.npz"
        )
    try:
        if path.suffix == ".json":
            arrays, meta = read_seed_list(path)
            # It lacks the policy's reference batch, which follows from the run's settings.
            reference = make_reference_batch(RunConfig.of(meta["config"], "the seed list"))
            arrays = arrays if reference is None else {**arrays, REFERENCE: reference}
        else:
            arrays, meta = read_npz(path, POLICY_ARRAYS)
        config = meta.get("config")
        settings = config if isinstance(config, dict) else {}
        unused = {"strategy": "", "behaviour": ""}  # playing imports neither
        require_trust("the file", modules_named_by({**settings, **unused}))
    except (RunFolderError, UsageError) as error:
        raise RunFolderError(f"{path}: {error}") from None
    if elite is None:
        return arrays, meta
    return {**arrays, "parameters": elite.parameters}, {**meta, "evaluation": None}


def load_policy_from(path: Path, arrays: dict[str, Any], meta: dict[str, Any]) -> SavedPolicy:
    try:
        return SavedPolicy(arrays, meta, trust=True)
    except RunFolderError as error:
        raise RunFolderError(f"{path}: {error}") from None


def find_elite(path: Path, text: str) -> Elite:
    """The elite of the cell with the behaviour ``text``, such as 0.2,0.5, in the archive of a
    checkpoint; the nearest one if that cell is empty.
    """
    try:
        requested = [float(word) for word in text.split(",")]
    except ValueError:
        requested = [math.nan]
    if not all(map(math.isfinite, requested)):
        raise UsageError(
            f"--cell is {text!r}: use a behaviour's numbers, joined by commas, such as 0.2,0.5"
        )
    archive, _ = read_archive(path)
    cells = archive.cells
    if cells is None or not len(archive):
        raise RunFolderError(f"the archive of {path} has no elite yet: leave --cell out")
    numbers = len(cells.low)
    if len(requested) != numbers:
        best = ",".join(f"{number:.6g}" for number in archive.behaviour[archive.best])
        raise UsageError(
            f"--cell is {text}, but the behaviours of {path} have {numbers} "
            f"number{'s' * (numbers != 1)}: give as many, such as --cell={best}"
        )
    place = np.array(requested)
    row = archive.row(int(cells.locate(place[np.newaxis])[0]))
    contains = row is not None
    if row is None:
        # in the box of the bounds, as centroids are compared
        away = (archive.behaviour - place) / (cells.high - cells.low)
        row = int(np.argmin(np.square(away).sum(axis=1)))
    return Elite(
        requested=requested,
        contains=contains,
        cell=int(archive.cell[row]),
        behaviour=archive.behaviour[row].tolist(),
        fitness=float(archive.fitness[row]),
        parameters=archive.parameters[row],
    )


# --- exports


def export_policy(path: Path, target: Path, elite: Elite | None = None) -> None:
    """Write the policy of the checkpoint, or of its elite, in the form of the target's suffix."""
    arrays, meta = read_contents(path, elite)
    ending = target.suffix
    if ending != ".json":
        data = export_bytes(ending, load_policy_from(path, arrays, meta), arrays, meta)
    elif path.suffix == ".json":
        data = read_file(path, MAX_BYTES)  # a seed list stays unchanged
    else:
        try:
            data = f"{format_seed_list(path, arrays, meta)}\n".encode()
        except RunFolderError as error:
            raise RunFolderError(f"{path}: {error}") from None
    try:
        with replacing(target) as file:  # no link in its place is followed
            file.write(data)
    except OSError as error:
        raise RunFolderError(f"{target} cannot be written: {error.strerror}") from None
    policy = "the policy" if elite is None else f"the elite of cell {elite.cell}"
    hint = ""
    if ending in (".json", ".npz"):
        modules = ", ".join(modules_named_by(meta["config"]))
        trust = f"es-play --trust plays it, in a folder that holds {modules}"
        hint = f"; {trust}" if modules else "; es-play plays it"
    print(f"{escape(str(target))}: {policy} of {escape(str(path))} in {len(data)} bytes{hint}")


def write_model_card(path: Path, folder: Path) -> None:
    """Write the policy as a Hugging Face model repository, without network; a policy without an
    ONNX form gets no ONNX file.

    The form of README.md: https://huggingface.co/docs/hub/model-cards (metadata and model-index).
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
    config, evaluation = checkpoint.config, checkpoint.evaluation or {}
    env, run = sanitize(config.problem, LONGEST_NAME), sanitize(checkpoint.run, LONGEST_NAME)
    metadata: dict[str, Any] = {
        "library_name": "es-queue",
        "pipeline_tag": TASK,
        "tags": [env, config.strategy, TASK, "evolution-strategies"],
    }
    lines = [f"# {env}, trained with es-queue", ""]
    names = ("eval_mean", "eval_std", "eval_episodes")
    mean, deviation, episodes = (finite_number(evaluation.get(name)) for name in names)
    if mean is not None and deviation is not None:
        score = f"{format_return(mean)} +/- {format_return(deviation)}"
        result = {
            "task": {"type": TASK, "name": TASK},
            "dataset": {"name": env, "type": env},
            "metrics": [{"type": "mean_reward", "name": "mean_reward", "value": score}],
        }
        metadata["model-index"] = [{"name": run, "results": [result]}]
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


def finite_number(value: object) -> float | None:
    """A value of someone else's file, if it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def format_return(value: float) -> str:
    """Two decimals; below 1 up to three significant digits, so that a small loss is not 0.00."""
    return f"{value:.3g}" if 0 < abs(value) < 1 else f"{value + 0.0:.2f}"
