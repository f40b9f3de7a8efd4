"""Formats a run's figures for people. It prints nothing, and trusts no input."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from numbers import Real

from es_queue.command_line import format_command
from es_queue.config.recipes import expected_points, recipe_for
from es_queue.config.run_config import RunConfig, default_of
from es_queue.config.scaling import LARGEST_SCALE
from es_queue.text import sanitize
from es_queue.user_code import named_modules

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
SUMMARY_FIELDS = (("digest", "digest"), ("last", "last_checkpoint"), ("best", "best_checkpoint"))
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


def shown(write: Callable[[float], str]) -> Callable[[object], str]:
    """``write`` for numbers and texts that are one; a dash for anything else."""

    def write_or_dash(value: object) -> str:
        number = finite_or_none(value)
        return "-" if number is None else write(number)

    return write_or_dash


@shown
def format_whole(number: float) -> str:
    """1234567 as ``1,234,567``, beyond 1e15 as ``1e+300``."""
    return f"{number:.3g}" if abs(number) > LARGEST_WHOLE else f"{number:,.0f}"


@shown
def format_compact(number: float) -> str:
    """1234567 as ``1.23 M``."""
    for size, sign in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(number) >= size:
            return f"{number / size:.2f} {sign}" if abs(number) < 1000 * size else f"{number:.3g}"
    return f"{number:,.0f}"


@shown
def format_score(number: float) -> str:
    """A return or a loss: one decimal, none from 10,000 on, two below 10, up to three significant
    digits below 1.
    """
    size = abs(number)
    if size == 0:  # also -0.0
        return "0.0"
    digits = ((1e9, ".4g"), (10_000, ",.0f"), (10, ".1f"), (1, ".2f"), (0, ".3g"))
    return format(number, next(digit for least, digit in digits if size >= least))


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


@shown
def format_percent(number: float) -> str:
    """0.352 as ``35 %``; a fraction above 0 never becomes 0 %, one below 1 never 100 %."""
    if abs(number) > LARGEST_WHOLE:
        return f"{100 * number:.3g} %"
    if 0 < number < 0.005:
        return "under 1 %"
    return "over 99 %" if 0.995 < number < 1 else f"{100 * number:.0f} %"


@shown
def format_duration(seconds: float) -> str:
    """``45 s``, ``12 min``, ``3 h 20 min`` or ``2 d 3 h``; a dash if it is negative."""
    if seconds < 0:
        return "-"
    if seconds > LARGEST_WHOLE:
        return f"{seconds:.3g} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(minutes / 60)
    return f"{hours // 24:,} d {hours % 24} h"


#: How each value of a line is written; any other figure is a return, and these texts are ready.
TEXTS = ("training", "evaluation", "at_work", "waiting")
WRITERS: dict[str, Callable[[object], str]] = {
    **dict.fromkeys(("generation", "generations", "env_steps", "max_steps"), format_compact),
    **dict.fromkeys(("eval_episodes", "steps_per_second", "workers", "busy"), format_whole),
    **dict.fromkeys(("cut_fraction", "centre_rank"), format_percent),
    **dict.fromkeys(TEXTS, str),
    "eta": format_duration,
}
#: Lines in parts. A part is left out unless its values are known, and above 0 if they have "?". A
#: line is empty without its first part.
Parts = tuple[str, ...]
TRAINING: Parts = (
    "{return_mean±return_std}, max {return_max}",
    " ({cut_fraction?} of episodes cut short)",
)
EVALUATION: Parts = ("{eval_mean±eval_std}", ", best {eval_best}")
GENERATION: Parts = (
    *("generation {generation}", " of {generations?}", " | steps {env_steps}", " of {max_steps?}"),
    *(" | return {training}", " | eval {evaluation}", " | confirming {confirm_mean}"),
    *(" | {steps_per_second} steps/s", " | {at_work}", " | {eta} left"),
)
FIELD = re.compile(r"\{(\w+)(?:±(\w+))?(\??)\}")


def fill(parts: Parts, values: Mapping[str, object]) -> str:
    """A line of these values; numbers can be texts."""

    def is_known(name: str, sign: str) -> bool:
        number = finite_or_none(values.get(name))
        if name in TEXTS:
            return bool(values.get(name))
        return number is not None and (not sign or number > 0)

    def write(field: re.Match[str]) -> str:
        name, deviation, _ = field.groups()
        if deviation:
            return format_mean_std(values[name], values.get(deviation))
        return WRITERS.get(name, format_score)(values[name])

    known = [all(is_known(name, sign) for name, _, sign in FIELD.findall(part)) for part in parts]
    kept = [part for part, is_in in zip(parts, known, strict=True) if is_in and known[0]]
    return FIELD.sub(write, "".join(kept))


def sparkline(values: Sequence[float], width: int) -> str:
    """The values as blocks from low to high; neighbours are averaged to fit the width."""
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
    return fill(TRAINING, record)


def format_evaluation(record: Mapping[str, Value]) -> str:
    """Mean, spread and the run's best, or empty."""
    return fill(EVALUATION, record)


def format_recoveries(record: Mapping[str, Value]) -> str:
    counts = [
        f"{format_whole(count)} {word}"
        for name, word in RECOVERY_FIELDS
        if (count := finite_or_none(record.get(name)) or 0.0) > 0
    ]
    return ", ".join(counts)


def format_progress(done: object, limit: float) -> str:
    """``1.23 M of 10.00 M`` if there is a limit."""
    return f"{format_compact(done)} of {format_compact(limit)}" if limit else format_compact(done)


def format_generation(record: Mapping[str, Value], config: RunConfig) -> str:
    lines = {
        "training": format_training_return(record),
        "evaluation": format_evaluation(record),
        "at_work": format_workers(record),
        "generations": config.generations,
        "max_steps": config.max_steps,
    }
    return fill(GENERATION, {**record, **lines})


def format_summary(record: Mapping[str, Value], config: RunConfig) -> list[str]:
    """The lines after a run; its own code, if it has any, is played only with --trust."""
    counts = (
        f"{format_whole(record.get('generation'))} generations, "
        f"{format_whole(record.get('episodes'))} episodes, "
        f"{format_whole(record.get('env_steps'))} steps"
    )
    final = "{eval_mean±eval_std} over {eval_episodes} fresh episodes, min {eval_min}"
    is_evaluated = finite_or_none(record.get("eval_mean")) is not None
    confirmed = fill(("{confirm_mean} when the target was passed",), record)
    rows: list[tuple[str, object]] = [
        ("evaluation", fill((final,), record) or "none at the end; no figure here can be quoted"),
        ("confirming", confirmed if is_evaluated else ""),
        *((name, record.get(key)) for name, key in SUMMARY_FIELDS),
    ]
    if best := record.get("best_checkpoint"):
        trust = " --trust" if named_modules(config) else ""
        rows.append(("play it", f"{format_command('es-play')} {sanitize(best, 4096)}{trust}"))
    return [
        f"run {sanitize(record.get('run'))} {sanitize(record.get('state'))} after "
        f"{format_duration(record.get('seconds'))}: {counts}",
        *(f"  {name:<12}{sanitize(text, 4096)}" for name, text in rows if text),
    ]
