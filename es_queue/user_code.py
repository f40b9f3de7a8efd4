"""Users' modules: which a process imports for a run, and what the current folder may serve.

A module that a file, a folder or Redis names is imported only if this process's user allowed it:
the command line and the Python program allow what they name, ``--trust`` what the file names, and
ES_QUEUE_ALLOW lists further modules, each with its submodules (``installed``: every installed
package, ``*``: all). Workers have the default ``installed``, files none. The current folder is not
on Python's path: only allowed modules, and what these import from beside them, come from it.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import packages_distributions
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from es_queue.errors import EsQueueError, RunFolderError
from es_queue.text import format_suggestion

if TYPE_CHECKING:
    from es_queue.config.run_config import RunConfig

ALLOW = "ES_QUEUE_ALLOW"
INSTALLED, EVERYTHING = "installed", "*"
#: Settings that may be ``module:name``.
CODE_SETTINGS = ("env", "objective", "model", "strategy", "policy", "behaviour")
MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
#: References to what es-queue imports itself: registered ids, and wrappers without arguments.
OWN_REFERENCE = re.compile(r"(gymnasium|ale_py):[\w/.-]*-v\d+|gymnasium\.wrappers:\w+", re.ASCII)


def named_modules(config: RunConfig) -> list[str]:
    """The modules of a run's own code."""
    return modules_named_by(
        {name: getattr(config, name, "") for name in (*CODE_SETTINGS, "wrapper")}
    )


def modules_named_by(settings: Mapping[str, Any]) -> list[str]:
    wrappers = settings.get("wrapper")
    references = [str(settings.get(name) or "") for name in CODE_SETTINGS]
    references += map(str, wrappers if isinstance(wrappers, list | tuple) else ())
    return list(
        dict.fromkeys(
            reference.rpartition(":")[0]
            for reference in references
            if reference.rpartition(":")[0] and not OWN_REFERENCE.fullmatch(reference)
        )
    )


def loose_modules(config: RunConfig) -> list[str]:
    """Those of a run's modules that a worker must allow by name."""
    return [module for module in named_modules(config) if not is_installed(module)]


def refused_module(modules: Iterable[str], default: str = "") -> str:
    """The first module that is not allowed; empty if all are. ``default``: without ES_QUEUE_ALLOW.

    The current folder then serves the allowed ones.
    """
    entries = _allowed_entries(default)
    for module in modules:
        if not MODULE.fullmatch(module) or not (
            EVERYTHING in entries
            or any(entry and f"{module}.".startswith(f"{entry}.") for entry in entries)
            or (INSTALLED in entries and is_installed(module))
        ):
            return module
        _CURRENT_FOLDER.names.add(module.partition(".")[0])
    _serve_current_folder()
    return ""


def require_trust(
    what: str,
    modules: Iterable[str],
    trust: bool = False,
    named: Sequence[str] = (),
    error_type: type[EsQueueError] = RunFolderError,
) -> None:
    """Raises ``error_type`` unless the modules that a file names are allowed.

    what: the file, as the sentence's subject; trust: whether the user trusts it; named: modules
    that the user named
    """
    with allowing([EVERYTHING] if trust else named):
        module = refused_module(modules)
    if module:
        raise error_type(
            f"{what} names the module {module[:80]!r}, whose code would run here: if you trust "
            f"it, use --trust (in Python trust=True), or set {ALLOW}={module[:80]}"
        )


@contextmanager
def allowing(modules: Iterable[str]) -> Iterator[None]:
    """A context in which this process and its children may import modules that the user named."""
    before = os.environ.get(ALLOW)
    if added := tuple(modules):
        given = () if before is None else (before,)
        os.environ[ALLOW] = ",".join(dict.fromkeys((*given, *added)))
        _serve_current_folder()
    try:
        yield
    finally:
        if added and before is None:
            os.environ.pop(ALLOW, None)
        elif added:
            os.environ[ALLOW] = str(before)


def is_trusted() -> bool:
    """Whether the user trusts the files that this process reads."""
    return EVERYTHING in _allowed_entries()


def is_installed(module: str) -> bool:
    """Whether a distribution provides the module's package; none provides Python's own library."""
    return module.partition(".")[0] in packages_distributions()


def _allowed_entries(default: str = "") -> list[str]:
    return [entry.strip() for entry in os.environ.get(ALLOW, default).split(",")]


# --- the current folder


class CurrentFolder:
    """A finder of allowed modules in the current folder, asked after all others.

    It also serves what a served module imports from beside it, and nothing to libraries that look
    for optional packages. names: top-level modules that may be imported
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._served: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        allowed = self.names.union(entry.partition(".")[0] for entry in _allowed_entries())
        allowed -= {INSTALLED, EVERYTHING}
        if path is not None or not (name in allowed or _importer() in self._served):
            return None
        spec = PathFinder.find_spec(name, [str(Path.cwd())], target)
        if spec is not None:
            self._served.add(name)
        return spec


def _importer() -> str:
    """The top-level name of the module whose import statement is being executed."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if name != "importlib":
            return name
        frame = frame.f_back
    return ""


_CURRENT_FOLDER = CurrentFolder()


def _serve_current_folder() -> None:
    if _CURRENT_FOLDER not in sys.meta_path:
        sys.meta_path.append(_CURRENT_FOLDER)


def leave_current_folder() -> None:
    """``python -m`` puts the current folder first on the path. A checkout of es-queue stays."""
    here, home = Path.cwd().resolve(), Path(__file__).resolve().parents[1]
    if not sys.flags.safe_path and here != home and Path(sys.path[0]).resolve() == here:
        del sys.path[0]


@contextmanager
def without_current_folder() -> Iterator[None]:
    """A context in which the current folder is not on the path; ``rq worker`` adds it there."""
    before = list(sys.path)
    sys.path[:] = [entry for entry in before if entry not in ("", ".")]
    try:
        yield
    finally:
        sys.path[:] = before


# --- imports


def load_function(what: str, path: str, error_type: type[EsQueueError]) -> Callable[..., Any]:
    """``module:function``. Raises ``error_type``, whose sentence names ``what``."""
    function = load_attribute(f"{what} {path}", path, error_type)
    if not callable(function):
        raise error_type(f"the {what} {path} is not a function")
    return function  # type: ignore[no-any-return]


def load_attribute(what: str, path: str, error_type: type[EsQueueError]) -> Any:
    """``module:name``. Raises ``error_type``, whose sentence names ``what``."""
    module, _, name = path.partition(":")
    if trouble := module_trouble(module):
        raise error_type(f"the {what}: {trouble}")
    loaded: object = None
    try:
        loaded = importlib.import_module(module)
        return getattr(loaded, name)
    except (Exception, SystemExit) as error:  # a program's module may exit when imported
        near = format_suggestion(name, vars(loaded) if loaded else ())
        hint = near and f"; {near}"
        raise error_type(f"the {what} cannot be imported: {describe_error(error)}{hint}") from error


def last_line(error: BaseException) -> str:
    """Where it was raised, for a sentence: " (net.py, line 12)"; empty if unknown."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def module_trouble(module: str) -> str:
    """Why ``module`` cannot be a module's name, with the name to give; empty if it can."""
    if MODULE.fullmatch(module) and not module.endswith(".py"):
        return ""
    name = re.sub(r"\W+", "_", module.removesuffix(".py").lstrip("./")).strip("_")
    if module.endswith(".py") or "/" in module:
        return f"{module!r} is a file: name its module, such as {name}, in the folder of the file"
    return f"{module!r} cannot be a module's name: rename the file, such as {name}.py"


def describe_error(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
