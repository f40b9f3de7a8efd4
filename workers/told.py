"""What es-play says of the episodes that it has played."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from es_queue.figures import Figures
    from workers.rollout import Episode

#: Fewer episodes show no shape and no interval worth the name.
LEAST_FOR_HISTOGRAM = 10
LEAST_FOR_INTERVAL = 3
BINS, WIDTH = 10, 40


def outcome(about: Mapping[str, Any], seed: int | None, episodes: Sequence[Episode], evaluation: Mapping[str, Any] | None) -> dict[str, Any]:
    """``about`` with the figures, and how they compare with the recorded ``evaluation``; recorded and equal are None where
    nothing compares. interval: of the mean, 95 % by bootstrap over episodes, None for fewer than three."""
    from es_queue.aggregates import bootstrap_interval, means
    from es_queue.figures import figures_of

    returns = [one.total for one in episodes]
    figures = figures_of(returns)
    assert figures is not None  # at least one episode is played
    recorded = comparable(evaluation or {}, figures)
    return {
        **about, "episodes": figures.count, "seed": seed,
        "eval_mean": figures.mean, "eval_std": figures.std, "eval_min": figures.least, "eval_max": figures.greatest,
        "interval": None if figures.count < LEAST_FOR_INTERVAL else list(bootstrap_interval(returns, means)),
        "length_mean": sum(one.steps for one in episodes) / len(episodes),
        "recorded": recorded, "equal": None if recorded is None else figures.mean == recorded,
    }  # fmt: skip


def comparable(evaluation: Mapping[str, Any], figures: Figures) -> float | None:
    """The recorded mean when it is of these episodes."""
    mean = evaluation.get("eval_mean")
    same = evaluation.get("eval_episodes") == figures.count
    return float(mean) if same and isinstance(mean, (int, float)) and mean == mean else None


def sentences(found: Mapping[str, Any]) -> list[str]:
    """The outcome for people."""
    kind = "of the final evaluation" if found["seed"] is None else f"from seed {found['seed']} on"
    generation = "" if found["generation"] is None else f", generation {found['generation']}"
    lines = [
        f"{shown(found['checkpoint'])}: {shown(found['env'])}, {found['policy']} policy of run {shown(found['run'])}{generation}",
        f"{found['episodes']} {'episode' if found['episodes'] == 1 else 'episodes'} {kind}: {figures_shown(found)}",
    ]
    if found.get("command"):
        lines.insert(1, f"made by: {shown(found['command'])}")
    if found["equal"]:
        lines.append(f"equal to the recorded evaluation to the last digit: {found['recorded']!r}")
    elif found["equal"] is False:
        lines.append(
            f"not equal to the recorded evaluation: {found['eval_mean']!r} against {found['recorded']!r} "
            "(another CPU type, or another release of numpy or of the environment, gives other bits)"
        )
    elif found["seed"] is None:
        lines.append("the checkpoint records no final evaluation of these episodes to compare with")
    return lines


def figures_shown(found: Mapping[str, Any]) -> str:
    if found["episodes"] == 1:
        return f"{found['eval_mean']:.2f} in {found['length_mean']:.0f} steps"
    interval = "" if found["interval"] is None else f" (95 % of the mean: {found['interval'][0]:.2f} to {found['interval'][1]:.2f})"
    return (
        f"{found['eval_mean']:.2f} ± {found['eval_std']:.2f}{interval}, min {found['eval_min']:.2f}, max {found['eval_max']:.2f}, "
        f"mean length {found['length_mean']:.1f} steps"
    )


def histogram(returns: Sequence[float]) -> list[str]:
    """How often each range of returns came, a line a range; nothing of a few episodes, or of equal ones."""
    low, high = min(returns), max(returns)
    if len(returns) < LEAST_FOR_HISTOGRAM or not low < high or math.isinf(high - low):
        return []
    edges = [low + (high - low) * place / BINS for place in range(BINS + 1)]
    counts = [0] * BINS
    for one in returns:
        counts[min(BINS - 1, int((one - low) / (high - low) * BINS))] += 1
    digits = min(9, max(0, 1 - math.floor(math.log10((high - low) / BINS))))
    wide = max(len(f"{edge:.{digits}f}") for edge in edges)
    most = max(counts)
    return [
        f"  {start:{wide}.{digits}f} … {stop:{wide}.{digits}f}  {'█' * round(WIDTH * count / most)}{' ' if count else ''}{count or ''}".rstrip()
        for start, stop, count in zip(edges, edges[1:], counts)  # noqa: B905 - the last edge only ends a range
    ]


def shown(text: str) -> str:
    """Text out of a file that may come from anyone, harmless to a terminal."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
