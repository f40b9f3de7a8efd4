"""The report of es-play on the episodes that it played."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from es_queue.text import escape

if TYPE_CHECKING:
    from es_queue.numerics.statistics import ReturnStatistics
    from workers.episode import Episode

#: Fewer episodes show no shape and no interval worth the name.
MIN_FOR_HISTOGRAM = 10
MIN_FOR_INTERVAL = 3
BINS, WIDTH = 10, 40


def summarize(
    about: Mapping[str, Any],
    seed: int | None,
    episodes: Sequence[Episode],
    evaluation: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """``about`` with the figures, and a comparison with the recorded ``evaluation``.

    recorded and equal are None if the episodes differ. interval: of the mean, 95 % by bootstrap
    over episodes, None for fewer than three
    """
    # start-up: numpy
    from es_queue.numerics.statistics import bootstrap_interval, means, return_statistics

    returns = [episode.total for episode in episodes]
    figures = return_statistics(returns)
    assert figures is not None  # at least one episode is played
    recorded = recorded_mean(evaluation or {}, figures)
    return {
        **about,
        "episodes": figures.count,
        "seed": seed,
        "eval_mean": figures.mean,
        "eval_std": figures.std,
        "eval_min": figures.minimum,
        "eval_max": figures.maximum,
        "interval": None
        if figures.count < MIN_FOR_INTERVAL
        else list(bootstrap_interval(returns, means)),
        "length_mean": sum(episode.steps for episode in episodes) / len(episodes),
        "recorded": recorded,
        "equal": None if recorded is None else figures.mean == recorded,
    }


def recorded_mean(evaluation: Mapping[str, Any], figures: ReturnStatistics) -> float | None:
    mean = evaluation.get("eval_mean")
    same = evaluation.get("eval_episodes") == figures.count
    return float(mean) if same and isinstance(mean, (int, float)) and mean == mean else None


def print_played(
    summary: Mapping[str, Any],
    lines: Sequence[str],
    episodes: Sequence[Episode],
    video_line: str,
    *,
    as_json: bool,
) -> None:
    if as_json:
        print(json.dumps(summary, allow_nan=False))
        return
    histogram = format_histogram([episode.total for episode in episodes])
    print("\n".join([*lines, *histogram, *filter(None, [video_line])]))


def format_policy(summary: Mapping[str, Any]) -> str:
    generation = "" if summary["generation"] is None else f", generation {summary['generation']}"
    return (
        f"{escape(summary['checkpoint'])}: {escape(summary['env'])}, "
        f"{summary['policy']} policy of run {escape(summary['run'])}{generation}"
    )


def format_played(summary: Mapping[str, Any], kind: str = "") -> str:
    plural = "" if summary["episodes"] == 1 else "s"
    return f"{summary['episodes']} episode{plural}{kind}: {format_figures(summary)}"


def format_summary(summary: Mapping[str, Any]) -> list[str]:
    seed = summary["seed"]
    default = (
        " with the final evaluation's seeds" if summary.get("elite") else " of the final evaluation"
    )
    kind = default if seed is None else f" from seed {seed} on"
    kind += ", with action noise" if summary.get("stochastic") else ""
    lines = [format_policy(summary), format_played(summary, kind)]
    if summary.get("command"):
        lines.insert(1, f"trained with: {escape(summary['command'])}")
    if summary.get("elite"):
        lines.insert(1, format_elite(summary["elite"]))
    if summary["equal"]:
        lines.append(f"equal to the recorded evaluation to the last digit: {summary['recorded']!r}")
    elif summary["equal"] is False:
        lines.append(
            f"not equal to the recorded evaluation: {summary['eval_mean']!r} against "
            f"{summary['recorded']!r} "
            "(another CPU type or another version of numpy or of the environment gives different "
            "bits)"
        )
    return lines


def format_elite(elite: Mapping[str, Any]) -> str:
    """Its cell and behaviour, and whether it is in the requested cell."""
    requested, behaviour = (
        ", ".join(f"{number:.6g}" for number in elite[name]) for name in ("requested", "behaviour")
    )
    is_nearest = "" if elite["contains"] else f", the nearest: the cell of {requested} is empty"
    return (
        f"elite of cell {elite['cell']}: behaviour {behaviour}, fitness "
        f"{format_return(elite['fitness'])} in training{is_nearest}"
    )


def format_return(value: float) -> str:
    """Two decimals; below 1 up to three significant digits, so that a small loss is not 0.00."""
    return f"{value:.3g}" if 0 < abs(value) < 1 else f"{value + 0.0:.2f}"


def format_figures(summary: Mapping[str, Any]) -> str:
    if summary["episodes"] == 1:
        return f"{format_return(summary['eval_mean'])} in {summary['length_mean']:.0f} steps"
    names = ("mean", "std", "min", "max")
    mean, std, least, most = (format_return(summary[f"eval_{name}"]) for name in names)
    length = f"mean length {summary['length_mean']:.1f} steps"
    if least == most:
        return f"{mean} in each, {length}"
    bounds = " to ".join(map(format_return, summary["interval"] or ()))
    interval = f" (95 % of the mean: {bounds})" if bounds else ""
    return f"{mean} ± {std}{interval}, min {least}, max {most}, {length}"


def format_histogram(returns: Sequence[float]) -> list[str]:
    """One line per range of returns; nothing for a few episodes, or equal ones."""
    low, high = min(returns), max(returns)
    if len(returns) < MIN_FOR_HISTOGRAM or not low < high or math.isinf(high - low):
        return []
    edges = [low + (high - low) * place / BINS for place in range(BINS + 1)]
    counts = [0] * BINS
    for value in returns:
        counts[min(BINS - 1, int((value - low) / (high - low) * BINS))] += 1
    digits = min(9, max(0, 1 - math.floor(math.log10((high - low) / BINS))))
    wide = max(len(f"{edge:.{digits}f}") for edge in edges)
    most = max(counts)
    return [
        (
            f"  {start:{wide}.{digits}f} … {stop:{wide}.{digits}f}  "
            f"{'█' * round(WIDTH * count / most)}{' ' if count else ''}{count or ''}"
        ).rstrip()
        for start, stop, count in zip(edges, edges[1:], counts)  # noqa: B905 - the last edge only ends a range
    ]
