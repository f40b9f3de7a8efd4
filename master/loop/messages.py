"""What people read of a run, and when it cannot go on: small pure functions of the loop."""

from __future__ import annotations

from collections.abc import Mapping

from es_queue.config.run_config import RunConfig
from es_queue.errors import EnvironmentFailure
from es_queue.numerics.fingerprint import bytes_digest
from es_queue.numerics.return_statistics import ReturnStatistics
from master.loop.state import Floats, RunState


def vector_digest(vector: Floats) -> str:
    """BLAKE2b-128 of the bytes that are published: little-endian float32."""
    return bytes_digest(vector.astype("<f4").tobytes())


def remaining_seconds(
    config: RunConfig, seconds: float, env_steps: int, generation: int
) -> float | None:
    """Seconds until the nearest budget ends the run, None without one."""
    shares = [
        done / budget
        for done, budget in (
            (env_steps, config.max_steps),
            (generation, config.generations),
            (seconds, config.max_seconds),
        )
        if budget
    ]
    share = max(shares, default=0.0)
    return seconds * (1 - share) / share if 0 < share < 1 else None


def evaluation_fields(figures: ReturnStatistics) -> dict[str, float | int]:
    return {
        "eval_mean": figures.mean,
        "eval_std": figures.std,
        "eval_min": figures.minimum,
        "eval_max": figures.maximum,
        "eval_episodes": figures.count,
    }


def format_values(values: Mapping[str, object]) -> dict[str, str]:
    """Plain text for people: floats with as many digits as they need, nothing for None."""
    return {
        name: f"{value:.6g}" if isinstance(value, float) else str(value)
        for name, value in values.items()
        if value is not None
    }


def validate_patience(state: RunState, config: RunConfig) -> None:
    """Patience where rewards are never positive ends every episode at step N for ever: say so, and
    stop.
    """
    if config.patience != "none" and state.counters.patience_generations >= 20:
        raise EnvironmentFailure(
            f"patience {config.patience} ended every episode of 20 generations: where rewards "
            "are never positive it ends "
            "all of them at the same step, so drop --patience or use --reward-shift"
        )
