"""The back ends that step environments, and the package that each needs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Backend:
    """How episodes are stepped.

    text: for ``--help``; extra: the extra of es-queue with its packages, or empty
    """

    name: str
    text: str
    extra: str = ""

    @property
    def install(self) -> str:
        return f"pip install 'es-queue[{self.extra}]'"


LEAN = Backend("lean", "es-queue's own, faster")
ENVPOOL = Backend("envpool", "many episodes at once in C++", extra="envpool")
STOCK = Backend("stock", "Gymnasium's own")
GYM = Backend("gym", "the old gym's own", extra="gym")
ANY = Backend("any", "lean or envpool, whichever a host has, if both give the same bits")
#: By the name that ``--backend`` gives.
BACKENDS = {backend.name: backend for backend in (LEAN, ENVPOOL, STOCK, GYM, ANY)}


def format_backends() -> str:
    *most, last = (f"{backend.name} ({backend.text})" for backend in BACKENDS.values())
    return f"{', '.join(most)}, or {last}"
