"""Classes by name, each imported when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TypeVar

T = TypeVar("T")


class LazyClasses(Mapping[str, T]):
    """A registry that knows where each class is. paths: module:Class by name"""

    def __init__(self, paths: Mapping[str, str]) -> None:
        self._paths = paths

    def __getitem__(self, name: str) -> T:
        module, _, attribute = self._paths[name].partition(":")
        loaded: T = getattr(import_module(module), attribute)
        return loaded

    def __contains__(self, name: object) -> bool:
        return name in self._paths

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)
