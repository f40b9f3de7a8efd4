"""Tries an environment for the doctor, in a process of its own: the folder in the first argument
holds the settings, and gets a description, a zero and an error, of which one is empty.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path


def main() -> None:
    folder = Path(sys.argv[1])
    # start-up: before numpy
    from es_queue.numerics.fingerprint import fix_numeric_environment

    fix_numeric_environment()

    from es_queue.config.run_config import RunConfig
    from es_queue.environments.factory import describe
    from es_queue.environments.interface import EnvironmentRequest, format_parts
    from es_queue.errors import EsQueueError
    from es_queue.user_code import INSTALLED, describe_error, named_modules, refused_module

    text = trouble = ""
    try:
        config = RunConfig.from_json((folder / "config.json").read_text())
        if module := refused_module(named_modules(config), INSTALLED):
            trouble = f"the module {module} is not allowed here: name it in ES_QUEUE_ALLOW"
        else:
            spec = describe(replace(EnvironmentRequest.of(config), behaviour=""))
            parts = format_parts(spec.observation)[:300] if len(spec.observation) > 1 else ""
            text = (
                f"{spec.observation_size} observations{f' ({parts})' if parts else ''}, "
                f"{spec.action.kind} actions, {spec.backend} back end"
            )
    except EsQueueError as error:
        trouble = str(error)
    except Exception as error:
        trouble = describe_error(error)
    answer = f"{text[:1000]}\0{trouble[:1000]}".encode("utf-8", "replace")
    (folder / "new").write_bytes(answer)
    (folder / "new").rename(folder / "answer")
    os._exit(0)  # threads of the environment may never end
