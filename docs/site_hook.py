"""What the site adds to the pages: the changelog, links to files outside docs/, and only entries of
the navigation whose pages exist.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

HOUSE = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """Remove the entries of missing pages."""
    config.nav = [entry for entry in map(kept, config.nav) if entry]
    return config


def kept(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry with those of its pages that exist; empty if none do."""
    ((title, target),) = entry.items()
    if isinstance(target, str):
        return entry if (HOUSE / "docs" / target).exists() else {}
    inner = [one for one in map(kept, target) if one]
    return {title: inner} if inner else {}


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Link files outside docs/ to ``repo_url``, or name them if it is empty."""
    if page.file.src_uri == "changelog.md":
        markdown = (HOUSE / "CHANGELOG.md").read_text("utf-8").replace("](", "](../")
        markdown = markdown.replace("](../docs/", "](").replace("](../#", "](#")
    folder = (HOUSE / "docs" / page.file.src_uri).parent

    def shown(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target or not leaves_docs(folder / target):
            return match[0]
        path = (folder / target).resolve().relative_to(HOUSE)
        return (
            f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{path}{anchor})"
            if config.repo_url
            else text
        )

    return LINK.sub(shown, markdown)


def leaves_docs(path: Path) -> bool:
    docs = HOUSE / "docs"
    return not path.resolve().is_relative_to(docs) or path.suffix in (".py", ".sh")
