"""Settings and flags that es-queue had, and what to use instead."""

from __future__ import annotations

#: By the name of the setting or flag, with underscores: a clause after "was removed: ".
REMOVED: dict[str, str] = {
    "style": "es-plot writes PDF and SVG, which scale to any width",
    "preprocessing": (
        "use --env-arg obs_type=ram for the memory of an Atari game; images are Gymnasium's, "
        "with --env-arg screen_size=N and stack=N"
    ),
    "islands": "train several seeds with --seeds, or end slow searches with --restart-deadlines",
    "island_generations": "train several seeds with --seeds",
    "tune": "search for settings with Optuna, as docs/tuning.md shows",
    "tune_members": "search for settings with Optuna, as docs/tuning.md shows",
    "tune_generations": "search for settings with Optuna, as docs/tuning.md shows",
    "episodes_max": "use more --episodes per individual, or a larger --population",
    "restarts": "use --restart-deadlines, or train several seeds with --seeds",
    "searches": "use --emitter iso_line or gaussian",
    "search_steps": "use --emitter iso_line or gaussian",
    "step_length": "use --emitter iso_line or gaussian",
    "replica_url": "give Redis' host a faster network; each host fetches parameters once",
}


def describe_removed(name: str) -> str:
    """One sentence for a removed setting or flag, with or without dashes; else empty.

    The sentence has the name as the user wrote it.
    """
    word = name.lstrip("-").replace("-", "_")
    advice = REMOVED.get(word) or REMOVED.get(word.removeprefix("no_"))
    return f"{name} was removed: {advice}" if advice else ""
