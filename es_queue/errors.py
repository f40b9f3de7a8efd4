"""Every error that es-queue raises on purpose, and the exit code that a command gives for it.

EsQueueError                 exit code
├── UsageError               2    a flag, a file or a value that cannot be
│   └── StrategyFailure      2    a strategy of the user's own raises, or gives what cannot be
├── RedisError               3    the server: unreachable, refused, unsuitable
├── RunBusyError             4    another master drives the run
│   └── FencedError          4    another master took the run over
├── EnvironmentFailure       5    the environment: unknown, broken, not reproducible
│   └── MissingPackage       5    this host lacks a package or a module of it
├── RunFolderError           6    the run's folder or a checkpoint in it
│   └── NoRunError           6    neither the folder nor Redis holds the run
└── DecodeError              -    bytes from the network that are not what they should be
"""

from __future__ import annotations

EXIT_DONE = 0
EXIT_INTERRUPTED = 130


class EsQueueError(Exception):
    """An error that one sentence explains; ``exit_code`` is what a command ends with."""

    exit_code = 1


class UsageError(EsQueueError):
    """A flag, a configuration file or a value that cannot be used."""

    exit_code = 2


class StrategyFailure(UsageError):  # noqa: N818 - the sentence says what failed
    """A strategy of the user's own raised, or gave what cannot be used."""


class RedisError(EsQueueError):
    """The Redis server cannot be reached, refuses us, or is not fit for a run."""

    exit_code = 3


class RunBusyError(EsQueueError):
    """The run has a living master already."""

    exit_code = 4


class FencedError(RunBusyError):
    """Another master took this run over; nothing that we write counts any more."""


class EnvironmentFailure(EsQueueError):  # noqa: N818 - EnvironmentError is Python's own name for OSError
    """The environment is unknown, cannot be made, raises, or does not repeat itself."""

    exit_code = 5


class MissingPackage(EnvironmentFailure):
    """This host lacks a package or a module that the environment needs; on a worker that is no
    fault of the run.
    """


class RunFolderError(EsQueueError):
    """The run's folder cannot be written, or holds nothing that can be resumed."""

    exit_code = 6


class NoRunError(RunFolderError):
    """Neither the run's folder nor Redis holds a checkpoint of the run."""


class DecodeError(EsQueueError):
    """Bytes that are not a message of ours. The text never repeats the bytes."""
