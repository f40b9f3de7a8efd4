"""Finds and reads the checkpoint that es-play plays.

Importing this module loads numpy: fix the numeric environment first.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from es_queue.config.run_config import RunConfig
from es_queue.policies.checkpoint_policy import SavedPolicy
from es_queue.pretrained import training_command
from workers.play.elite import Elite
from workers.play.export_policy import load_policy_from, read_contents


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
    command: str = ""


def load_checkpoint(path: Path, elite: Elite | None = None) -> Checkpoint:
    """The checkpoint or seed list at ``path``, checked, with the policy of an ``elite`` of its
    archive. Raises RunFolderError in one sentence.
    """
    arrays, meta = read_contents(path, elite)
    policy = load_policy_from(path, arrays, meta)
    generation, evaluation = meta.get("generation"), meta.get("evaluation")
    return Checkpoint(
        path,
        policy.config,
        policy,
        str(meta.get("run", "unknown"))[:40],
        generation if isinstance(generation, int) else None,
        evaluation if isinstance(evaluation, dict) else None,
        training_command(meta),
    )
