"""Write what docs/ has from the code: the flags, the Redis keys, the exit codes:
``python -m tools.write_reference``.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import get_type_hints
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from es_queue import errors  # noqa: E402 - the checkout's own
from es_queue.config.run_config import every_setting, users_of  # noqa: E402
from es_queue.config.settings import Setting, format_flag  # noqa: E402
from es_queue.protocol import keys  # noqa: E402
from master.cli import flags  # noqa: E402
from master.plot.command import main as es_plot  # noqa: E402
from master.status.command import main as es_status  # noqa: E402
from master.status.figures import FIGURES, TEXT, WORKER_FIGURES  # noqa: E402
from master.status.snapshot import Run  # noqa: E402
from workers.es_play import main as es_play  # noqa: E402
from workers.es_worker import main as es_worker  # noqa: E402

WRITTEN = "<!-- written by tools/write_reference.py -->"
#: Groups of RunConfig's fields, with what each is about.
GROUPS = {
    "problem": "What is trained",
    "policy": "Policy",
    "search": "Search",
    "episodes": "Episodes in training",
    "evaluation": "Evaluation and stopping",
    "model": "Update of a model",
    "machinery": "Machinery that changes no number of a healthy run",
}


#: When to use each option of --help.
WHEN = {
    "env": "to train in a Gymnasium environment; many runs need only this option",
    "objective": "to maximise your own function; with ask, another program scores the vectors",
    "policy": "if a linear policy is too weak: mlp for numbers, nature for images, gru or lstm if"
    " one observation does not show the whole state",
    "seed": "to repeat a run, or to compare two settings with the same randomness",
    "strategy": "to compare algorithms, or if the choice of auto does not learn",
    "population": "to use more workers, or if the returns of one policy differ much; a smaller one "
    "updates more often",
    "sigma": "to enlarge it if all individuals have nearly the same return, and to reduce it if"
    " they all fail while the unperturbed policy succeeds",
    "scale": "to use many more workers with settings that were tuned for few",
    "seeds": "to compare settings: one seed shows little about others",
    "recipe": "to repeat published results, or with none to start from plain defaults",
    "config": "to keep the settings of an experiment in a file",
    "generations": "to end a trial after a known number of updates",
    "max_steps": "to compare strategies after equal numbers of steps",
    "max_seconds": "if you pay for the time, or if a batch system ends the job",
    "target_reward": "to end a run at another return than the registered one, or with none to "
    "continue after it",
    "redis_url": "to use workers on other hosts",
    "workers": "to keep cores free, or with 0 to use only workers that you start yourself",
    "run": "to find the run again by a name that you choose",
    "video_every": "to see how the behaviour changes during training",
    "help": "with a NAME to see what a strategy, policy or schedule adds",
    "help_all": "to see the options of every run",
}


def main() -> None:
    for name, text in written().items():
        (ROOT / "docs" / name).write_text(text, "utf-8")


def written() -> dict[str, str]:
    """The text of each page, by its file's name."""
    return {
        "reference/flags.md": flags_page(),
        "reference/status.md": status_page(),
        "protocol.md": with_part("protocol.md", "keys", keys_table()),
        "reference/configuration.md": with_part(
            "reference/configuration.md", "exit codes", exit_codes_table()
        ),
    }


def with_part(page: str, name: str, text: str) -> str:
    """A page with the part between its marks replaced."""
    begin = f"<!-- {name}: begin, written by tools/write_reference.py -->\n"
    end = f"<!-- {name}: end -->"
    before, rest = (ROOT / "docs" / page).read_text("utf-8").split(begin)
    return f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}"


# --- flags


def flags_page() -> str:
    parts = [
        f"{WRITTEN}\n\n# Flags\n",
        "A setting comes from its flag, else from the `--config` file, else from the `--recipe`, "
        "else from the built-in recipe "
        "for the environment, else from the default. The settings, all groups after the control "
        "of a run, have the same names in a TOML file (with `-` or `_`) "
        "and in Python's `RunConfig` (with `_`); the last column has their types. A default such "
        "as `auto (0)` is a word for a number: flags, TOML files and "
        "Python take both. Flags also take `10k` and `2.5M`.\n",
        "## When to use the options of --help\n",
        "| flag | use it |\n|---|---|",
        *(f"| `{format_flag(name)}` | {text} |" for name, text in WHEN.items()),
        "\n## es-master: launch\n",
        *actions(flags.make_parser(), "launch"),
        "\n## es-master: control of a run\n",
        *actions(flags.make_parser(), "control of a run"),
        *(part for group, title in GROUPS.items() for part in settings(group, title)),
        "\n## es-status\n",
        *actions(parser_of(es_status)),
        "\n## es-play\n",
        *actions(parser_of(es_play)),
        "\n## es-plot\n",
        *actions(parser_of(es_plot)),
        "\n## es-worker\n",
        *actions(parser_of(es_worker)),
    ]
    return "\n".join(parts) + "\n"


class _Found(Exception):  # noqa: N818 - it is what was looked for
    pass


def parser_of(command: Callable[[list[str]], int]) -> argparse.ArgumentParser:
    """The parser with which a command reads its words."""
    found: list[argparse.ArgumentParser] = []

    def caught(parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        found.append(parser)
        raise _Found

    with (
        patch.object(argparse.ArgumentParser, "parse_args", caught),
        patch.object(argparse.ArgumentParser, "parse_known_args", caught),
        suppress(_Found),
    ):
        command([])
    return found[0]


def actions(parser: argparse.ArgumentParser, title: str = "") -> Iterator[str]:
    """Rows of a parser's options, of its groups whose titles begin so."""
    yield "| flag | effect |\n|---|---|"
    for group in parser._action_groups:
        if (group.title or "").startswith(title):
            for one in group._group_actions:
                names = (
                    ", ".join(f"`{name}`" for name in one.option_strings)
                    or f"`{one.metavar or one.dest}`"
                )
                shown = (
                    one.metavar
                    if isinstance(one.metavar, str)
                    else "\\|".join(map(str, one.choices or ()))
                )
                value = (
                    f" `{shown}`".replace("K+|", "K+\\|") if one.option_strings and shown else ""
                )
                yield f"| {names}{value} | {cell((one.help or '').replace('%%', '%'))} |"


def settings(group: str, title: str) -> Iterator[str]:
    """The settings of every run in a group; policies' and strategies' own follow theirs."""
    yield f"\n## Settings: {title[0].lower()}{title[1:]}\n"
    yield "| flag | effect | unit | default | values | type |\n|---|---|---|---|---|---|"
    part = {"policy": "policy", "search": "strategy"}.get(group)
    for one in every_setting().values():
        if one.group == group or (part and users_of(one.name, part)):
            yield setting(one)


def setting(one: Setting) -> str:
    choices = ", ".join(f"`{word}`" if word == one.own else word for word in one.words)
    flag = f"`{one.flag}`" + (f", `--no-{one.flag[2:]}`" if one.kind == "bool" else "")
    is_number = one.word and not one.words and one.default != ()
    default = f"{one.shown()} ({one.default:g})" if is_number else one.shown()
    return (
        f"| {flag} | {cell(flags.setting_text(one))} | {one.unit} | {cell(default)} | "
        f"{choices or bounds(one.low, one.high)} | {one.kind} |"
    )


def bounds(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return ""
    return f"from {low:g}" if high is None else f"{low if low is not None else '-'} to {high}"


def cell(text: str) -> str:
    """Text fit for a cell of a table; what looks like a tag is code."""
    return re.sub(
        r"<\w+>",
        lambda found: f"`{found[0]}`",
        text.replace("|", "\\|").replace("\n", " ").replace("*", "\\*"),
    )


# --- keys


def keys_table() -> str:
    """The table in the head of protocol/keys.py, its continued rows joined."""
    rows: list[list[str]] = []
    for line in (keys.__doc__ or "").splitlines():
        cells = [one.strip() for one in line.strip().strip("|").split("|")]
        if not line.startswith("|") or set(cells[0]) == {"-"}:
            continue
        if cells[0]:
            rows.append(cells)
        else:
            rows[-1] = [f"{old} {new}".strip() for old, new in zip(rows[-1], cells, strict=True)]
    table = [
        f"| `{name}` | {kind} | {cell(content)} | {cell(lifetime)} |"
        for name, kind, content, lifetime in rows[1:]
    ]
    return (
        "\n".join(
            [
                "`<run>` is a run's id, `<p>` a publication `<generation>.<token>`, `<worker>` "
                "the id that a worker has on one seat, `<host>-<pid>-<6 hex>`. "
                f'A lifetime of "run" is {keys.RUN_SECONDS // 86400} days from the last publish, '
                f"and {keys.FINISHED_SECONDS // 3600} hours once the run has finished. "
                "`es-status RUN --keys` shows them decoded. [Security](security.md) lists "
                "which user can touch which key.\n",
                "| key | type | content | lifetime |\n|---|---|---|---|",
                *table,
                (
                    "\nRQ's own keys that seats and masters touch begin with `rq:`; seats are RQ "
                    "jobs called `es-<run>-<nonce>-<number>`."
                ),
            ]
        )
        + "\n"
    )


# --- what es-status prints


def status_page() -> str:
    """The fields of Run, and the tables of figures."""
    hints = get_type_hints(Run, include_extras=True)
    about = {name: hint for name, hint in hints.items() if hasattr(hint, "__metadata__")}
    details = list(about).index("living")
    rows = [f"| `{name}` | {hint.__metadata__[0]} |" for name, hint in about.items()]
    figures = [
        f"| `{figure.name}` | {figure.unit or '-'} | {figure.sentence} | "
        f"{'yes' if 'json' in figure.places else ''} | {'yes' if 'csv' in figure.places else ''} | "
        f"{figure.tag and f'`{figure.tag}`'} | {figure.metric and f'`es_queue_{figure.metric}`'} |"
        for figure in FIGURES.values()
    ]
    workers = [
        f"| `{name}` | {unit or '-'} | {sentence} |"
        for name, (unit, sentence) in {
            "worker": (TEXT, "its id"),
            **WORKER_FIGURES,
            "seen": ("s", "since its newest heartbeat; null if unknown"),
        }.items()
    ]
    return (
        "\n".join(
            [
                f"{WRITTEN}\n\n# What es-status prints\n",
                (
                    '`es-status --json` prints `{"runs": [RUN, ...]}`, the newest run first. '
                    "`es-status RUN --json` prints one RUN. With `--watch` it prints an object per "
                    "line; `trouble` is then the reason for a look that failed. The page of "
                    "`es-status --web` serves the same objects, see "
                    "[watching a run](../watching.md#in-a-browser).\n"
                ),
                "Each RUN has these fields, and the figures below that are known:\n",
                "| field | meaning |\n|---|---|",
                *rows[:details],
                "\n`es-status RUN --json` adds:\n",
                "| field | meaning |\n|---|---|",
                *rows[details:],
                "\n## Figures\n",
                (
                    "A figure has the same name everywhere: in `es-status --json`, in "
                    "`metrics.csv`, and in `metrics.jsonl` ([metrics](metrics.md)). The last two "
                    "columns are its names in trackers and for Prometheus.\n"
                ),
                "| figure | unit | meaning | JSON | CSV | trackers | Prometheus |",
                "|---|---|---|---|---|---|---|",
                *figures,
                "\n## Workers\n",
                "Each entry of `living` has the fields that the worker has reported:\n",
                "| field | unit | meaning |\n|---|---|---|",
                *workers,
            ]
        )
        + "\n"
    )


# --- exit codes


def exit_codes_table() -> str:
    rows = [
        (errors.EXIT_DONE, "-", "Done."),
        (
            errors.EXIT_INTERRUPTED,
            "-",
            "Interrupted: Ctrl-C, SIGTERM, or `es-master --stop`.",
        ),
        *raised(),
    ]
    lines = [f"| {code} | {name} | {cell(text)} |" for code, name, text in sorted(rows)]
    return (
        "\n".join(
            [
                (
                    "All commands use these codes. An error states the problem and the fix in "
                    "one sentence. The classes are in `es_queue.errors`.\n"
                ),
                "| code | error | meaning |\n|---|---|---|",
                *lines,
                (
                    "\n`es-status RUN` has its own codes for a run's health: 0 healthy, 3 "
                    "unreachable (its server does not answer), 10 done, 11 stalled, 12 orphaned "
                    "(its master is gone), 13 failed."
                ),
            ]
        )
        + "\n"
    )


def raised() -> Iterator[tuple[int, str, str]]:
    """Every error of ours that a command ends with; one that belongs to no command has 1, as
    Python's own.
    """
    for name, one in vars(errors).items():
        if (
            isinstance(one, type)
            and issubclass(one, errors.EsQueueError)
            and one is not errors.EsQueueError
        ):
            yield (
                one.exit_code,
                f"`{name}`",
                " ".join((inspect.getdoc(one) or "").split("\n\n")[0].split()),
            )


if __name__ == "__main__":
    main()
