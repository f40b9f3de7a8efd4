"""The source keeps the rules of the house that a program can check: names, folders, widths."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.cases import each_case

HOUSE = Path(__file__).resolve().parents[2]
PACKAGES = ("es_queue", "master", "workers")
FILES = sorted(path for package in PACKAGES for path in (HOUSE / package).rglob("*.py"))
MOST_FILES = 14
PRONOUNS = {"one", "found", "told", "said", "heard", "due", "own"}


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def test_a_public_class_name_is_defined_once() -> None:
    names = Counter(
        node.name
        for path in FILES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert len(names) > 300
    assert [name for name, count in names.items() if count > 1] == []


def test_a_folder_has_at_most_fourteen_files_directly_in_it() -> None:
    files = Counter(path.parent for path in FILES)
    assert {str(folder): count for folder, count in files.items() if count > MOST_FILES} == {}


def bound_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """(name, line) of every variable, parameter, attribute, function and alias that is bound."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                yield name, node.lineno
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name, node.lineno
            case ast.MatchMapping(rest=str(name)):
                yield name, node.lineno


@each_case("package", PACKAGES)
def test_no_variable_is_a_pronoun(package: str) -> None:
    pronouns = [
        f"{path.relative_to(HOUSE)}:{line} {name}"
        for path in FILES
        if path.is_relative_to(HOUSE / package)
        for name, line in bound_names(parse(path))
        if name.lstrip("_") in PRONOUNS
    ]
    assert pronouns == []


def test_each_way_of_binding_a_name_is_seen() -> None:
    text = """
import os as a
def b(c, *d, e=1, **f): g = h.i = 1
class j: k: int
try: [l for l in m]
except E as n: pass
with o as p: (q := 1)
for r, s in t: pass
match u:
    case [v, *w] | {"": x, **y}: pass
"""
    names = {name for name, _ in bound_names(ast.parse(text))}
    assert names == set("abcdefgijklnpqrsvwxy")
