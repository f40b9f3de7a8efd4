"""Every figure of a run, named once: its unit, what it is, how it is written, and where it shows.

The files of a run, the trackers, es-status, its page, ``/metrics``, the live panel and the
reference page are renderings of this table. Nothing is printed here, and no input is trusted.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Real

from es_queue.config.scaling import LARGEST_SCALE
from es_queue.text import sanitize

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
MOST_HOSTS = 6
BAR_SIGNS = "▁▂▃▄▅▆▇█"
GRAPH_WIDTH = 40
TEXT = "text"


# --- numbers from anywhere


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


def parse_number(value: object) -> int | float | None:
    """``finite_or_none``, with whole numbers as such."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    is_whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**19
    return value if is_whole else finite_or_none(value)  # type: ignore[return-value]


def format_values(values: Mapping[str, object]) -> dict[str, str]:
    """Plain text for Redis: floats with six digits, nothing for None."""
    return {
        name: f"{value:.6g}" if isinstance(value, float) else str(value)
        for name, value in values.items()
        if value is not None
    }


# --- how they are written


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
    """``123.4 ± 5.6``: a smaller deviation has the decimals of its mean, and at least one digit;
    only the mean without a deviation.
    """
    text, deviation = format_score(mean), finite_or_none(std)
    size = abs(finite_or_none(mean) or 0.0)
    if deviation is None:
        return text
    shown = f"{deviation:.{len(text.partition('.')[2])}f}"
    if size * ROUNDING < deviation <= size < LARGEST_WHOLE:
        return f"{text} ± {shown if float(shown) else f'{deviation:.1g}'}"
    return f"{text} ± {format_score(deviation if deviation > size * ROUNDING else 0.0)}"


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


# --- the table


@dataclass(frozen=True)
class Figure:
    """name: in metrics.jsonl, the run's progress in Redis, and JSON. unit: TEXT for a text, empty
    for a count. places: ``json`` (es-status and its page) and ``csv`` (metrics.csv, whose columns
    stand in the order of the table). tag: its name in trackers; metric: its name for Prometheus,
    ``_total`` for a counter; column: its head in the table of runs. Empty: it is not shown there.
    """

    name: str
    unit: str
    places: str
    sentence: str
    tag: str = ""
    metric: str = ""
    column: str = ""

    def write(self, value: object) -> str:
        return WRITE[self.unit](value)


#: How a figure is written, by its unit.
WRITE: Mapping[str, Callable[[object], str]] = {
    TEXT: str,
    **dict.fromkeys(("", "steps/s", "workers", "Unix time"), format_whole),
    **dict.fromkeys(("return", "number"), format_score),
    "steps": format_compact,
    "s": format_duration,
    "0 to 1": format_percent,
}


def table(text: str) -> Iterator[list[str]]:
    """The cells of a table's rows; a dash is an empty cell."""
    for line in text.strip().splitlines():
        yield ["" if cell == "-" else cell.strip() for cell in line.split(" | ")]


#: Name, unit, places, sentence, and the other names. metrics.csv keeps its columns and their order:
#: a new one comes after all others.
FIGURES = {
    name: Figure(
        name, unit, places, sentence, **dict(one.split("=") for one in " ".join(more).split())
    )
    for name, unit, places, sentence, *more in table("""
state | text | json | the state; orphaned if the run needs a master and has none
stage | text | json | training, closing (the last evaluation) or final episodes
env | text | json | the environment
strategy | text | json | the strategy
generation | - | json csv | the open generation | tag=run/generation metric=generation column=gen
env_steps | steps | json csv | environment steps of training that counted | \
    metric=env_steps_total column=steps
episodes | - | json csv | training episodes that counted | metric=episodes_total
seconds | s | json csv | time that the run has trained, without pauses | \
    tag=run/seconds metric=training_seconds_total
return_mean | return | json csv | mean of the newest generation's training episodes | \
    tag=training/return_mean metric=return_mean
return_std | return | json csv | standard deviation of the same | tag=training/return_std
return_max | return | json csv | highest of the same | tag=training/return_max metric=return_max
fitness_mean | number | csv | mean fitness of the newest generation | tag=training/fitness_mean
length_mean | steps | csv | mean length of a training episode | tag=training/episode_length
cut_fraction | 0 to 1 | json csv | training episodes that the rules of training cut short | \
    tag=training/cut_fraction
eval_mean | return | json csv | \
    mean of the newest evaluation; of a finished run, of its final episodes | \
    tag=evaluation/mean metric=eval_mean column=eval
eval_std | return | json csv | standard deviation of the same | tag=evaluation/std
eval_min | return | json csv | lowest of the same | tag=evaluation/min
eval_max | return | csv | highest of the same
eval_best | return | json csv | mean of the best evaluation in training | \
    tag=evaluation/best metric=eval_best column=best
confirm_mean | return | json csv | mean of the fresh episodes that confirm a target
sigma | number | csv | size of the search distribution | tag=search/sigma
norm | number | csv | Euclidean norm of the parameters | tag=search/norm
update_ratio | number | csv | length of the update, divided by the norm | tag=search/update_ratio
centre_rank | 0 to 1 | json csv | individuals that the unperturbed policy beats | \
    tag=search/centre_rank
steps_per_second | steps/s | json csv | of training, in the newest generation | \
    tag=run/steps_per_second metric=steps_per_second
workers | - | json csv | workers that the master counts | \
    tag=run/workers metric=workers column=workers
recovered | - | json csv | workers that died while they held blocks | \
    metric=recovered_total
reissued | - | json csv | rows that were issued again, because they were overdue or lost | \
    metric=reissued_total
late | - | json csv | blocks whose results came too late | metric=late_total
refused | - | csv | results that the master refused
lost_steps | steps | json csv | environment steps that were not used | metric=lost_steps_total
return_median | return | csv | median of the newest generation's training episodes
centre_return | return | json csv | one training episode of the unperturbed policy
eval_median | return | csv | median of the newest evaluation
eval_length_mean | steps | csv | mean length of its episodes
learning_rate | number | csv | of the strategy
publication | text | json | the open publication
answered | text | json | results of the open generation, of how many
info | text | json | means of --info in the newest generation's training episodes
eval_info | text | json | means of --info in the newest evaluation
digest | text | json | hash of the parameters
why | text | json | why a failed run ended
advice | text | json | what may help a run that no longer improves
queue | text | json | the RQ queue of its workers
paused_by | text | json | the user that paused it
changed | text | json | settings that were changed while it trained
eval_steps | steps | json | environment steps of evaluations | metric=eval_steps_total
eval_steps_per_second | steps/s | json | of evaluation, in the newest generation | \
    metric=eval_steps_per_second
target | return | json | the return that ends the run | metric=target
eval_episodes | - | json | final episodes of a finished run
duplicate | - | json | results for slots that already had one | metric=duplicate_total
busy | workers | json | workers that are busy on average: the sum of their shares | \
    metric=busy_workers
eta | s | json | until the nearest budget ends the run | metric=eta_seconds
updated | Unix time | json | the master's last update, by its own clock | \
    metric=updated_timestamp_seconds
answered_at | Unix time | json | the newest result that counted, by the same clock
seconds_wait | s | json | time that the newest generation waited for results
training_slots | - | json | training slots of a generation
scale | number | json | factor of --scale
starting | - | json | local workers that are starting
step_limit | steps | json | limit of a training episode
audited | - | json | results that the master played itself, with equal bits
""")
}
#: Of a run's progress in Redis, in the order in which a person at redis-cli sees them.
PROGRESS = {name: figure.unit for name, figure in FIGURES.items() if "json" in figure.places}
#: What a worker's heartbeat reports: its unit, and what it is.
WORKER_FIGURES = {
    name: (unit, sentence)
    for name, unit, sentence in table("""
host | text | its host
name | text | its name, the same in each of its seats
rq_name | text | its name in RQ
backend | text | the back end of its environments
numerics | text | the fingerprint of its arithmetic
block | text | the block that it evaluates
refuses | text | why it cannot join
generation | text | the generation that it works for
python | text | its Python
noise | text | the digest of its noise table
versions | text | its packages
box2d | text | the distributions that provide Box2D
envpool | text | its EnvPool
packages | text | the folder that es-queue is imported from
pid | - | its process
steps | steps | environment steps since it joined
steps_per_second | steps/s | while it evaluates
busy | 0 to 1 | share of its time that it spent on blocks
late | - | blocks whose results came too late
blocks | - | evaluated blocks
joined | Unix time | when it joined, by its own clock
beat_ttl | s | lifetime of a heartbeat
threads | - | threads of BLAS
""")
}


# --- lines of figures

#: A part in brackets is left out unless its values are known, and above 0 if they have "?"; "!"
#: writes all digits. A line is empty without its first part.
STEPS_LINE = "{env_steps!}[ in {episodes} episodes][ + {eval_steps?!} in evaluations]"
STEPS_TAKEN = "{env_steps!} in training[ + {eval_steps?!} in evaluations]"
SPEED = "training {steps_per_second?}[ + evaluation {eval_steps_per_second?}][ steps/s]"
TRAINING = (
    "{return_mean±return_std}, max {return_max}[ ({cut_fraction?} of episodes cut short)][, {info}]"
)
EVALUATION = (
    "{eval_mean±eval_std}[, best {eval_best}][, in generation {evaluated}][, {eval_info}]"
    "[, target {aim}]"
)
FINAL_EVALUATION = (
    "{eval_mean±eval_std} over {eval_episodes} fresh episodes[, {eval_info}]"
    "[; best in training {eval_best}][, target {aim}]"
)
UNPERTURBED = "{centre_return} in one episode[, fitter than {centre_rank} of the perturbed]"
GENERATION = (
    "generation {generation}[ of {generations?}][ | steps {env_steps}][ of {max_steps?}]"
    "[ | return {training}][ | eval {evaluation}][ | confirming {confirm_mean}][ | {speed}]"
    "[ | {at_work}][ | {eta} left]"
)
#: Texts that are ready, and budgets; any other value that is no figure is a return.
TEXTS = ("training", "evaluation", "speed", "at_work", "waiting", "info", "eval_info")
WRITERS: dict[str, Callable[[object], str]] = {
    **{name: figure.write for name, figure in FIGURES.items()},
    **dict.fromkeys(("generations", "max_steps"), format_compact),
    "evaluated": format_whole,
    **dict.fromkeys(TEXTS, str),
}
FIELD = re.compile(r"\{(\w+)(?:±(\w+))?([?!]*)\}")
#: Counts of faults from which the run recovered, with their names for people.
RECOVERIES = {
    "recovered": "blocks recovered",
    "reissued": "overdue, issued twice",
    "refused": "results refused",
    "late": "late",
    "duplicate": "duplicates",
    "lost_steps": "lost steps",
}


def fill(line: str, values: Mapping[str, object]) -> str:
    """A line of these values; numbers can be texts."""

    def is_known(name: str, sign: str) -> bool:
        if name in TEXTS:
            return bool(values.get(name))
        number = finite_or_none(values.get(name))
        return number is not None and ("?" not in sign or number > 0)

    def write(field: re.Match[str]) -> str:
        name, deviation, sign = field.groups()
        if deviation:
            return format_mean_std(values[name], values.get(deviation))
        return (format_whole if "!" in sign else WRITERS.get(name, format_score))(values[name])

    parts = re.split(r"[][]+", line)
    known = [all(is_known(name, sign) for name, _, sign in FIELD.findall(part)) for part in parts]
    kept = [part for part, is_in in zip(parts, known, strict=True) if is_in and known[0]]
    return FIELD.sub(write, "".join(kept))


def figure_rows(
    figures: Mapping[str, Value], means: Sequence[float], among: str = ""
) -> list[tuple[str, str]]:
    """Labelled lines of what a run has reached, for the panel and es-status; empty if unknown.

    means: of its evaluations; among: of how many they are
    """
    is_final = figures.get("eval_episodes") is not None
    graph = format_graph(means)
    return [
        ("speed", fill(SPEED, figures)),
        ("training", fill(TRAINING, figures)),
        ("evaluation", fill(FINAL_EVALUATION if is_final else EVALUATION, figures)),
        ("curve", graph and f"{graph}{among}"),
        ("unperturbed", fill(UNPERTURBED, figures)),
        ("confirming", fill("{confirm_mean}", figures)),
        ("repeated", format_recoveries(figures)),
    ]


def format_recoveries(record: Mapping[str, Value]) -> str:
    """``2 blocks recovered, 3 late``"""
    counts = {name: finite_or_none(record.get(name)) or 0.0 for name in RECOVERIES}
    return ", ".join(
        f"{format_whole(count)} {RECOVERIES[name]}" for name, count in counts.items() if count > 0
    )


def format_results(done: object, slots: object, training: object) -> str:
    """``20 of 53 results (32 training slots)``; empty if unknown."""
    known, number = finite_or_none(slots), finite_or_none(training)
    if known is None or finite_or_none(done) is None:
        return ""
    is_trained = number is not None and number <= known  # not in the final episodes
    about = f" ({format_whole(training)} training slots)" if is_trained else ""
    return f"{format_whole(done)} of {format_whole(slots)} results{about}"


def format_graph(values: Sequence[float], width: int = GRAPH_WIDTH) -> str:
    """The values as blocks from low to high, then the lowest and the highest; empty for fewer than
    two. Neighbours are averaged to fit the width.
    """
    if len(values) < 2:
        return ""
    columns = min(width, len(values))
    edges = [len(values) * column // columns for column in range(columns + 1)]
    drawn = [max(-LARGEST_DRAWN, min(LARGEST_DRAWN, value)) for value in values]
    means = [math.fsum(drawn[low:high]) / (high - low) for low, high in pairwise(edges)]
    low, high = min(means), max(means)
    signs = (min(7, int(8 * (mean - low) / (high - low))) if high > low else 3 for mean in means)
    blocks = "".join(BAR_SIGNS[sign] for sign in signs)
    return f"{blocks}  {format_score(min(values))} to {format_score(max(values))}"


def format_workers(figures: Mapping[str, Value]) -> str:
    return f"{format_whole(figures.get('workers'))} worker{'s' * (figures.get('workers') != 1)}"


def format_idle_workers(
    workers: float, slots: float | None, busy: float | None, scale: float = 1.0
) -> str:
    """A note that workers have too little work; empty if they have enough.

    slots: of a generation, None if unlimited; busy: the sum of their busy shares, None if unknown
    """
    fleet = f"{format_whole(workers)} workers"
    if busy is not None and workers > 1 and 0 < busy < LEAST_BUSY * workers:
        larger = scale_for(min(workers / busy, workers), scale)
        idle = f"{format_whole(max(1, busy))} of {fleet} are busy on average"
        return f"{idle}: `--scale {larger:g}` would use them" if larger > scale else ""
    if slots is None or not 0 < slots < workers:
        return ""
    return (
        f"a generation has {format_whole(slots)} training slots for {fleet}, so at least "
        f"{format_whole(workers - slots)} wait: `--scale {scale_for(workers / slots, scale):g}` "
        "gives them work"
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


def format_hosts(names: Iterable[str]) -> str:
    """``a, b ×2 and 3 more hosts``; a repeated host appears once, with its count."""
    counts = Counter(sanitize(name, 60) for name in names)
    labels = [f"{name} ×{count}" if count > 1 else name for name, count in sorted(counts.items())]
    more = f" and {len(labels) - MOST_HOSTS} more hosts" if len(labels) > MOST_HOSTS else ""
    return ", ".join(labels[:MOST_HOSTS]) + more
