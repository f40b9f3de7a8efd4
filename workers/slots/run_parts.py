"""The parts that a run's episodes need on this host."""

from __future__ import annotations

from dataclasses import dataclass

from es_queue.config.run_config import RunConfig
from es_queue.environments.interface import Environment, VectorEnvironment
from es_queue.environments.spaces import EnvironmentSpec
from es_queue.policies import Policy
from es_queue.strategies.base import Strategy


@dataclass(frozen=True)
class RunParts:
    """``envs`` plays many episodes at once; without it, or for fewer than ``min_episodes``, ``env``
    plays one by one.
    """

    config: RunConfig
    spec: EnvironmentSpec
    policy: Policy
    strategy: Strategy
    env: Environment
    envs: VectorEnvironment | None = None
    min_episodes: int = 1
