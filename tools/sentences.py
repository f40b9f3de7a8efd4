"""Every sentence that a person can meet in the source: errors, log lines, prints, help.

``python -m tools.sentences`` prints them in one list, with file and line. Parts that are known only
at run time are shown as ``{expression}``.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("es_queue", "master", "workers")
KINDS = ("error", "log", "print", "help", "text")
LOGGED = {"debug", "info", "warning", "error", "exception", "critical", "note", "warn", "say"}
HELP_KEYWORDS = {"help", "text", "description", "epilog"}


@dataclass(frozen=True)
class Sentence:
    """kind: one of KINDS; ``text`` is a string of several words that is in none of the others."""

    path: str
    line: int
    kind: str
    text: str


def source_files() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def sentences(path: Path) -> Iterator[Sentence]:
    """The sentences of one file, in its order."""
    tree = ast.parse(path.read_text("utf-8"))
    kinds = dict(kinds_of_strings(tree))
    documented = set(docstrings(tree))
    inner = {
        part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in parts(node)
    }
    found = [
        Sentence(str(path.relative_to(ROOT)), node.lineno, kinds.get(node, "text"), text)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant | ast.JoinedStr)
        and node not in inner
        and node not in documented
        and len((text := text_of(node)).split()) > 2
    ]
    yield from sorted(found, key=lambda sentence: sentence.line)


def kinds_of_strings(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Raise(exc=ast.Call() as call):
                yield from ((inner, "error") for inner in ast.walk(call))
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args):
                if name.endswith(("Error", "Failure", "Refusal")):
                    yield from ((inner, "error") for arg in args for inner in ast.walk(arg))
                elif name == "print":
                    yield from ((inner, "print") for arg in args for inner in ast.walk(arg))
                elif name.lstrip("_") in LOGGED:
                    yield from ((inner, "log") for arg in args for inner in ast.walk(arg))
            case ast.keyword(arg=str(name)) if name in HELP_KEYWORDS:
                yield from ((inner, "help") for inner in ast.walk(node.value))


def parts(node: ast.JoinedStr) -> Iterator[ast.AST]:
    """The pieces of text of an f-string, which are no sentences of their own."""
    yield from (value for value in node.values if isinstance(value, ast.Constant))


def docstrings(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


def text_of(node: ast.Constant | ast.JoinedStr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(
        f"{{{ast.unparse(value.value)}}}"
        if isinstance(value, ast.FormattedValue)
        else str(value.value)
        for value in node.values
        if isinstance(value, ast.FormattedValue | ast.Constant)
    )


def main() -> None:
    parser = argparse.ArgumentParser("python -m tools.sentences", description=__doc__)
    parser.add_argument("--kind", choices=KINDS, help="show only one kind [default: all]")
    kind = parser.parse_args().kind
    for path in source_files():
        for sentence in sentences(path):
            if kind in (None, sentence.kind):
                text = " ".join(sentence.text.split())
                print(f"{sentence.path}:{sentence.line}: {sentence.kind}: {text}")


if __name__ == "__main__":
    main()
