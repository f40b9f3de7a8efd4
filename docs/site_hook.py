"""What the site adds to the pages: the changelog, and links to files outside docs/."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

HOUSE = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add CHANGELOG.md, which lies outside docs/, as a page."""
    text = (HOUSE / "CHANGELOG.md").read_text("utf-8").replace("](", "](../")
    text = text.replace("](../docs/", "](").replace("](../#", "](#")
    files.append(File.generated(config, "changelog.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Link files outside docs/ to ``repo_url``, or name them if it is empty."""
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
