"""Formats a run's figures for people. It prints nothing, and trusts no input."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from numbers import Real

from es_queue.config.recipes import expected_points, recipe_for
from es_queue.config.run_config import RunConfig, default_of
from es_queue.config.scaling import LARGEST_SCALE
from es_queue.security.sanitize import sanitize
from es_queue.security.user_code import named_modules
from es_queue.util.command_path import format_command

Value = float | int | str | None
Record = dict[str, Value]

#: Larger numbers are not real figures; all their digits would break a table.
LARGEST_WHOLE = 1e15
#: A deviation below this share of its mean is rounding: the figures were equal.
ROUNDING = 1e-12
#: A larger figure cannot be drawn: an axis, a sum or a square of such figures overflows.
LARGEST_DRAWN = 1e30
#: A fleet that is busy for a smaller share of its time has too little work.
LEAST_BUSY = 0.75
BAR_SIGNS = "▁▂▃▄▅▆▇█"
#: Fields of a record that count faults from which the run recovered, with their names for people.
RECOVERY_FIELDS = (
    ("recovered", "blocks recovered"),
    ("reissued", "re-issued"),
    ("refused", "answers refused"),
    ("late", "late"),
    ("failed", "slots failed"),
)
#: A recipe's expectations apply only to its method.
METHOD_SETTINGS = ("strategy", "policy")


def finite_or_none(value: object) -> float | None:
    """A number, or a text that is one, as a finite float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (Real, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def drawable_or_none(value: object) -> float | None:
    """``finite_or_none`` of the value; None also if no axis can show it."""
    number = finite_or_none(value)
    return number if number is not None and abs(number) <= LARGEST_DRAWN else None


def parse_number(text: str) -> int | float | None:
    return (
        int(text) if text.isascii() and text.isdigit() and len(text) < 20 else finite_or_none(text)
    )


def format_values(values: Mapping[str, object]) -> dict[str, str]:
    """Plain text for people: floats with the digits they need, nothing for None."""
    return {
        name: f"{value:.6g}" if isinstance(value, float) else str(value)
        for name, value in values.items()
        if value is not None
    }


def format_whole(value: object) -> str:
    """1234567 as ``1,234,567``, beyond 1e15 as ``1e+300``; a dash if it is not a number."""
    number = finite_or_none(value)
    if number is None:
        return "-"
    return f"{number:.3g}" if abs(number) > LARGEST_WHOLE else f"{number:,.0f}"


def format_compact(value: object) -> str:
    """1234567 as ``1.23 M``; a dash if it is not a number."""
    number = finite_or_none(value)
    if number is None:
        return "-"
    for size, sign in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(number) >= size:
            return f"{number / size:.2f} {sign}" if abs(number) < 1000 * size else f"{number:.3g}"
    return f"{number:,.0f}"


def format_score(value: object) -> str:
    """A return or a loss: one decimal, none from 10,000 on, two below 10, up to three significant
    digits below 1; a dash if it is not a number.
    """
    number = finite_or_none(value)
    if number is None:
        return "-"
    if abs(number) >= 1e9:
        return f"{number:.4g}"
    if abs(number) >= 10_000:
        return f"{number:,.0f}"
    if number == 0:  # also -0.0
        return "0.0"
    if abs(number) >= 10:
        return f"{number:.1f}"
    return f"{number:.2f}" if abs(number) >= 1 else f"{number:.3g}"


def format_mean_std(mean: object, std: object) -> str:
    """``123.4 ± 5.6``; only the mean without a deviation."""
    deviation, size = finite_or_none(std), abs(finite_or_none(mean) or 0.0)
    if deviation is None:
        return format_score(mean)
    if deviation < size * ROUNDING:
        deviation = 0.0
    if 0 < deviation < 1:
        return f"{format_score(mean)} ± {deviation:#.2g}"
    shown = f"{deviation:.1f}" if 1 <= deviation < 10 <= size else format_score(deviation)
    return f"{format_score(mean)} ± {shown}"


def format_percent(fraction: object) -> str:
    """0.352 as ``35 %``; a fraction above 0 never becomes 0 %, one below 1 never 100 %."""
    number = finite_or_none(fraction)
    if number is None:
        return "-"
    if abs(number) > LARGEST_WHOLE:
        return f"{100 * number:.3g} %"
    if 0 < number < 0.005:
        return "under 1 %"
    return "over 99 %" if 0.995 < number < 1 else f"{100 * number:.0f} %"


def format_duration(seconds: object) -> str:
    """``45 s``, ``12 min``, ``3 h 20 min`` or ``2 d 3 h``; a dash if it is not a time."""
    number = finite_or_none(seconds)
    if number is None or number < 0:
        return "-"
    if number > LARGEST_WHOLE:
        return f"{number:.3g} s"
    if number < 100:
        return f"{number:.0f} s"
    minutes = round(number / 60)
    if minutes < 100:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(minutes / 60)
    return f"{hours // 24:,} d {hours % 24} h"


def sparkline(values: Sequence[float], width: int) -> str:
    """The values as blocks from low to high; neighbours are averaged to fit the width."""
    if not values or width < 1:
        return ""
    values = [max(-LARGEST_DRAWN, min(LARGEST_DRAWN, value)) for value in values]
    columns = min(width, len(values))
    edges = [len(values) * column // columns for column in range(columns + 1)]
    means = [math.fsum(values[low:high]) / (high - low) for low, high in pairwise(edges)]
    low, high = min(means), max(means)
    if low == high:
        return BAR_SIGNS[3] * columns
    return "".join(BAR_SIGNS[min(7, int(8 * (mean - low) / (high - low)))] for mean in means)


def format_graph(values: Sequence[float], width: int) -> str:
    """The values as blocks with their lowest and highest; empty for fewer than two."""
    if len(values) < 2:
        return ""
    return f"{sparkline(values, width)}  {format_score(min(values))} to {format_score(max(values))}"


def format_workers(figures: Mapping[str, Value]) -> str:
    return f"{format_whole(figures.get('workers'))} worker{'s' * (figures.get('workers') != 1)}"


def format_idle_workers(
    workers: int, slots: int | None, busy: float | None, scale: float = 1.0
) -> str:
    """A note that workers have too little work; empty if they have enough.

    slots: of a generation, None if unlimited; busy: the sum of their busy shares, None if unknown
    """
    if busy is not None and workers > 1 and 0 < busy < LEAST_BUSY * workers:
        larger = scale_for(min(workers / busy, workers), scale)
        return (
            f"{max(1, round(busy)):,} of {workers:,} workers are busy on average: "
            f"`--scale {larger:g}` would use them"
            if larger > scale
            else ""
        )
    if slots is None or not 0 < slots < workers:
        return ""
    return (
        f"a generation has {slots:,} training slots for {workers:,} workers, so at least "
        f"{workers - slots:,} wait: `--scale {scale_for(workers / slots, scale):g}` gives them work"
    )


def scale_for(factor: float, scale: float) -> float:
    """The scale for ``factor`` times as much work as now, rounded up to a power of two times
    ``scale``.
    """
    return min(LARGEST_SCALE, scale * 2.0 ** math.ceil(math.log2(min(factor, LARGEST_SCALE))))


def busy_workers(workers: Iterable[Mapping[str, str]]) -> float | None:
    """How many workers are busy on average: the sum of their shares; None unless most have one."""
    reported = list(workers)
    shares = [finite_or_none(about.get("busy") or None) for about in reported]
    known = [min(1.0, max(0.0, share)) for share in shares if share is not None]
    if 2 * len(known) <= len(reported):
        return None
    return sum(known) * len(reported) / len(known)


def format_bar(done: float, total: float, width: int) -> str:
    filled = 0 if total <= 0 else int(width * max(0.0, min(1.0, done / total)))
    return "█" * filled + "░" * (width - filled)


def format_expectation(config: RunConfig, env_steps: object) -> str:
    """Empty without a recipe, or with another method."""
    points = expected_points(config.env)
    recipe = recipe_for(config.env)
    is_recipe_method = all(
        getattr(config, name) == recipe.get(name, default_of(name)) for name in METHOD_SETTINGS
    )
    if not points or not is_recipe_method:
        return ""
    steps = finite_or_none(env_steps) or 0.0
    nearest = min(points, key=lambda point: abs(point.steps - steps))
    return f"evaluations near {format_compact(nearest.steps)} steps: {nearest.note}"


def format_training_return(record: Mapping[str, Value]) -> str:
    """Marked if training cut episodes short; empty for a generation that was only evaluated."""
    if finite_or_none(record.get("return_mean")) is None:
        return ""
    text = (
        f"{format_mean_std(record.get('return_mean'), record.get('return_std'))}, max "
        f"{format_score(record.get('return_max'))}"
    )
    cut = finite_or_none(record.get("cut_fraction")) or 0.0
    return f"{text} ({format_percent(cut)} of episodes cut short)" if cut > 0 else text


def format_evaluation(record: Mapping[str, Value]) -> str:
    """Mean, spread and the run's best, or empty."""
    if finite_or_none(record.get("eval_mean")) is None:
        return ""
    best = record.get("eval_best")
    text = format_mean_std(record.get("eval_mean"), record.get("eval_std"))
    return f"{text}, best {format_score(best)}" if finite_or_none(best) is not None else text


def format_recoveries(record: Mapping[str, Value]) -> str:
    counts = [
        (format_whole(count), word)
        for name, word in RECOVERY_FIELDS
        if (count := finite_or_none(record.get(name)) or 0.0) > 0
    ]
    return ", ".join(f"{count} {word}" for count, word in counts)


def format_unperturbed(record: Mapping[str, Value]) -> str:
    """The unperturbed policy's return in training, and how many individuals it beat; empty if it
    did not play.
    """
    rank, total = record.get("centre_rank"), record.get("centre_return")
    if finite_or_none(rank) is None:
        return ""
    played = "" if finite_or_none(total) is None else f"{format_score(total)} in one episode, "
    return f"{played}better than {format_percent(rank)} of the perturbed"


def format_progress(done: object, limit: float) -> str:
    """``1.23 M of 10.00 M`` if there is a limit."""
    return f"{format_compact(done)} of {format_compact(limit)}" if limit else format_compact(done)


def format_generation(record: Mapping[str, Value], config: RunConfig) -> str:
    trained, evaluated = format_training_return(record), format_evaluation(record)
    confirmed = finite_or_none(record.get("confirm_mean"))
    left = finite_or_none(record.get("eta"))
    parts = [
        f"generation {format_progress(record.get('generation'), config.generations)}",
        f"steps {format_progress(record.get('env_steps'), config.max_steps)}",
        f"return {trained}" if trained else "",
        f"eval {evaluated}" if evaluated else "",
        "" if confirmed is None else f"confirming {format_score(confirmed)}",
        f"{format_whole(record.get('steps_per_second'))} steps/s",
        format_workers(record),
        "" if left is None else f"{format_duration(left)} left",
    ]
    return " | ".join(part for part in parts if part)


def format_summary(record: Mapping[str, Value], config: RunConfig) -> list[str]:
    """The lines after a run; its own code, if it has any, is played only with --trust."""
    head = (
        f"run {sanitize(record.get('run'))} {sanitize(record.get('state'))} after "
        f"{format_duration(record.get('seconds'))}"
    )
    counts = (
        f"{format_whole(record.get('generation'))} generations, "
        f"{format_whole(record.get('episodes'))} episodes, "
        f"{format_whole(record.get('env_steps'))} steps"
    )
    lines = [f"{head}: {counts}", *_format_final_evaluation(record)]
    for label, name in (
        ("digest", "digest"),
        ("last", "last_checkpoint"),
        ("best", "best_checkpoint"),
    ):
        if record.get(name):
            lines.append(f"  {label:<12}{sanitize(record[name], 4096)}")
    if best := record.get("best_checkpoint"):
        trust = " --trust" if named_modules(config) else ""
        lines.append(f"  play it     {format_command('es-play')} {sanitize(best, 4096)}{trust}")
    return lines


def _format_final_evaluation(record: Mapping[str, Value]) -> list[str]:
    if finite_or_none(record.get("eval_mean")) is None:
        return ["  evaluation  none at the end; no figure here can be quoted"]
    episodes = (
        f"over {format_whole(record.get('eval_episodes'))} fresh episodes, min "
        f"{format_score(record.get('eval_min'))}"
    )
    figures = format_mean_std(record.get("eval_mean"), record.get("eval_std"))
    lines = [f"  {'evaluation':<12}{figures} {episodes}"]
    if finite_or_none(record.get("confirm_mean")) is not None:
        lines.append(
            f"  {'confirming':<12}{format_score(record.get('confirm_mean'))} when the target "
            "was passed"
        )
    return lines
