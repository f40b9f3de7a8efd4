"""Settings and flags that es-queue had, and what to use instead."""

from __future__ import annotations

#: By the name of the setting or flag, with underscores: a clause after "was removed: ".
REMOVED: dict[str, str] = {
    "keep_slots": "use keep_generations",
    "preprocessing": (
        "use --env-arg obs_type=ram for the memory of an Atari game; images are Gymnasium's, "
        "with --env-arg screen_size=N and stack=N"
    ),
}


def describe_removed(name: str) -> str:
    """One sentence for a removed setting or flag, with or without dashes; else empty.

    The sentence has the name as the user wrote it.
    """
    word = name.lstrip("-").replace("-", "_")
    advice = REMOVED.get(word) or REMOVED.get(word.removeprefix("no_"))
    return f"{name} was removed: {advice}" if advice else ""
