"""Which modules of a run a process may import: the run names them, the operator allows them.

``ES_QUEUE_ALLOW`` lists modules, separated by commas; each also allows its submodules. The default,
``installed``, allows packages of installed distributions: no loose file, nothing of Python's
standard library, never a path. ``ale_py`` needs no permission, because es-queue itself imports it.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.metadata import packages_distributions
from types import BuiltinFunctionType, FunctionType
from typing import Any

from es_queue.config.run_config import RunConfig
from es_queue.errors import EsQueueError, MissingPackage, RunFolderError, UsageError

ALLOW = "ES_QUEUE_ALLOW"
INSTALLED = "installed"
#: A package's module of this name is a program: importing it may run it.
PROGRAM = "__main__"
#: Settings that may be ``module:name``.
CODE_SETTINGS = ("env", "objective", "strategy", "policy", "behaviour")
MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


def named_modules(config: RunConfig) -> list[str]:
    """The modules of a run's own code: environment or objective, strategy, policy, behaviour and
    wrappers.
    """
    return modules_named_by({name: getattr(config, name) for name in (*CODE_SETTINGS, "wrapper")})


def modules_named_by(settings: Mapping[str, Any]) -> list[str]:
    references = (str(settings.get(name) or "") for name in CODE_SETTINGS)
    modules = (
        *(reference.rpartition(":")[0] for reference in references),
        *(str(path).partition(":")[0] for path in settings.get("wrapper", ())),
    )
    return list(dict.fromkeys(filter(None, modules)))


def modules_to_allow(config: RunConfig) -> list[str]:
    """The modules of a run that ES_QUEUE_ALLOW must name on a worker: loose ones, and those with a
    function that is called (an objective, a behaviour, or one that makes the environment).

    It imports nothing: an environment's name in a module that is not imported counts as a function.
    """
    modules = [name for name in named_modules(config) if disallowed_reason([name], INSTALLED)]
    for reference in filter(None, (config.objective, config.behaviour, config.env)):
        module, _, name = reference.rpartition(":")
        thing = getattr(sys.modules.get(module), name, None)
        is_called = thing is None or reference != config.env or isinstance(thing, FunctionType)
        if module and name.isidentifier() and is_called:
            modules += [module] if thing is None else _called_modules(module, thing)
    return list(dict.fromkeys(modules))


def environment_allowing(modules: Iterable[str], own_modules: Iterable[str] = ()) -> dict[str, str]:
    """The environment variable that allows a run's ``modules`` in the processes started for it.

    Settings may come from someone else's folder or file. Only their loose modules are added,
    because a function of a package or of Python's own library could run any text.

    own_modules: named by the user of this process, so their functions may be called
    """
    allowed = (INSTALLED, *own_modules, *filter(is_loose, modules))
    return {ALLOW: os.environ.get(ALLOW, ",".join(dict.fromkeys(allowed)))}


@contextmanager
def allowed_modules(modules: Iterable[str], own_modules: Iterable[str] = ()) -> Iterator[None]:
    """A context in which this process and its children have the variable of
    :func:`environment_allowing`. It is not set if it names no module.
    """
    variable = environment_allowing(modules, own_modules)
    is_set_here = ALLOW not in os.environ and variable[ALLOW] != INSTALLED
    if is_set_here:
        os.environ.update(variable)
    try:
        yield
    finally:
        if is_set_here:
            del os.environ[ALLOW]


def disallowed_reason(modules: Iterable[str], allowed: str | None = None) -> str:
    """Why the first disallowed module may not be imported; empty if all may. ``allowed``: in place
    of ES_QUEUE_ALLOW.
    """
    given = os.environ.get(ALLOW, INSTALLED) if allowed is None else allowed
    listed = [entry.strip() for entry in given.split(",")]
    for module in modules:
        if not MODULE.fullmatch(module) or PROGRAM in module.split("."):
            return f"custom code: the run names {module[:80]!r}, which is not a module name"
        if not any(is_within(module, entry) for entry in listed if entry != INSTALLED) and not (
            INSTALLED in listed and is_installed(module)
        ):
            return (
                f"custom code: the run names the module {module[:80]}, which is not allowed "
                "here: install its package on this host, or start this worker with "
                f"{ALLOW}={INSTALLED},{module[:80]}"
            )
    return ""


def is_within(module: str, allowed: str) -> bool:
    return bool(allowed) and (module == allowed or module.startswith(f"{allowed}."))


def is_installed(module: str) -> bool:
    """Whether a distribution provides the module's package; none provides Python's own library."""
    return module.partition(".")[0] in packages_distributions()


def is_of_python(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def is_loose(module: str) -> bool:
    """Whether the module can only be a user's file, such as one in the current folder."""
    return not is_installed(module) and not is_of_python(module)


# --- while reading a file from others


class ImportGuard:
    """Refuses imports of modules that a file names, unless they are installed, allowed by
    ES_QUEUE_ALLOW, or all trusted.

    trust: whether the user trusts the file
    """

    def __init__(self, trust: bool) -> None:
        self.trust = trust
        # Looked up before the current folder is on the path, where anyone can put package metadata.
        self._packages = frozenset(packages_distributions())

    def check(self, what: str, module: str) -> None:
        """Raises RunFolderError for a module that may not be imported. The current folder counts
        only for modules that are not installed.
        """
        is_module = MODULE.fullmatch(module) is not None and PROGRAM not in module.split(".")
        if (
            is_module
            and module.partition(".")[0] in self._packages
            and not disallowed_reason([module])
        ):
            return
        if not is_module or not (self.trust or not disallowed_reason([module], modules_by_name())):
            shown = module[:80]
            raise RunFolderError(
                f"the {what} would import the module {shown}, which no installed package "
                "provides: its code would run on this machine; "
                "if you trust it, use --trust in its folder, or set "
                f"{ALLOW}={INSTALLED},{shown}"
            )
        if "." not in sys.path:
            sys.path.append(".")

    def check_wrapper(self, what: str, module: str, wrapper: object) -> None:
        """Raises RunFolderError for an object that the package only imported, such as os.system."""
        package = str(getattr(wrapper, "__module__", None) or "").partition(".")[0]
        if not self.trust and package != module.partition(".")[0]:
            raise RunFolderError(
                f"the {what} is not defined by the package {module.partition('.')[0]}: if you "
                f"trust the file, use --trust"
            )


def modules_by_name() -> str:
    given = os.environ.get(ALLOW, INSTALLED).split(",")
    return ",".join(entry for entry in given if entry.strip() != INSTALLED)


_guard: ImportGuard | None = None


@contextmanager
def guarded_imports(trust: bool) -> Iterator[None]:
    """Files may come from anyone: modules are imported only as ImportGuard allows."""
    global _guard
    before, path = _guard, list(sys.path)
    _guard = ImportGuard(trust)
    try:
        yield
    finally:
        _guard, sys.path[:] = before, path


def is_trusted() -> bool:
    return _guard is not None and _guard.trust


def check_import(what: str, module: str) -> None:
    """Call this before importing a module that a run or a file names.

    Raises UsageError for Python's own library, and within ``guarded_imports`` RunFolderError for a
    module that ImportGuard refuses.
    """
    if is_of_python(module):
        error_type = UsageError if _guard is None else RunFolderError
        raise error_type(
            f"the {what} is in Python's own library: name your own module, which must have "
            "another name"
        )
    if _guard is not None:
        _guard.check(what, module)


def check_wrapper(what: str, module: str, wrapper: object) -> None:
    """Call this before calling a wrapper, whose only argument is the environment. Raises
    RunFolderError within ``guarded_imports``.
    """
    if _guard is not None:
        _guard.check_wrapper(what, module, wrapper)


def check_called(what: str, module: str, function: object) -> None:
    """Call this before calling a function with arguments that both come from settings.

    Settings can come from someone else, and functions of some packages run any text. So
    ES_QUEUE_ALLOW must name the module itself, and the module that defines the function, or the
    class of a callable object. Python's own library is refused. Raises MissingPackage, and
    RunFolderError within ``guarded_imports``.
    """
    if is_trusted():
        return
    error_type = MissingPackage if _guard is None else RunFolderError
    names = _called_modules(module, function)
    for name in names:
        if is_of_python(name):
            raise error_type(
                f"the {what} is a function of Python's library ({name[:80]}), which is not called "
                "for a run: call it in a function of your module"
            )
        if disallowed_reason([name], modules_by_name()):
            trust = "" if _guard is None else ", or, if you trust the file, use --trust"
            raise error_type(
                f"the {what} is a function of the module {name[:80]}, which is called only if "
                f"{ALLOW} names the module: set {ALLOW}={','.join((INSTALLED, *names))[:200]}"
                f"{trust}"
            )


def _called_modules(module: str, function: object) -> list[str]:
    """The modules that ES_QUEUE_ALLOW must name for a function: that in the settings, and that
    which defines the function.
    """
    return list(dict.fromkeys((module, _defining_module(function))))


def _defining_module(function: object) -> str:
    """The module of a function, of a callable object's class, or of the function inside a partial
    or a bound method.
    """
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(getattr(function, "__func__", function))  # type: ignore[arg-type]
    is_defined = isinstance(function, FunctionType | BuiltinFunctionType | type)
    return str((function if is_defined else type(function)).__module__)


# --- imports


def load_function(what: str, path: str, error_type: type[EsQueueError]) -> Callable[..., Any]:
    """The user's function ``module:function``. Raises ``error_type``, whose sentence names
    ``what``, or the error of :func:`check_called`.
    """
    function = load_attribute(f"{what} {path}", path, error_type)
    if not callable(function):
        raise error_type(f"the {what} {path} is not a function")
    check_called(f"{what} {path}", path.partition(":")[0], function)
    return function  # type: ignore[no-any-return]


def load_attribute(what: str, path: str, error_type: type[EsQueueError]) -> Any:
    """The object ``module:name``. Raises ``error_type``, whose sentence names ``what``."""
    module, _, name = path.partition(":")
    check_import(what, module)
    try:
        return getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # a program's module may exit when imported
        raise error_type(f"the {what} cannot be imported: {describe_error(error)}") from error


def describe_error(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
