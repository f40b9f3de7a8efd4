"""The errors that es-queue raises, and the exit code of each.

EsQueueError                 exit code
├── UsageError               2    a bad flag, file or value
│   └── StrategyFailure      2    the user's own strategy raises, or returns something invalid
├── RedisError               3    the server: unreachable, refused, unsuitable
├── RunBusyError             4    another master leads the run
│   └── FencedError          4    another master took the run over
├── EnvironmentFailure       5    the environment: unknown, broken, not reproducible
│   └── MissingPackage       5    this host lacks a package or a module of it
├── RunFolderError           6    the run's folder or a checkpoint in it
│   └── NoRunError           6    no folder and no Redis has the run
└── DecodeError              1    invalid bytes from the network
"""

from __future__ import annotations

EXIT_DONE = 0
EXIT_INTERRUPTED = 130


class EsQueueError(Exception):
    """An error with a one-sentence explanation. ``exit_code`` is the command's exit code."""

    exit_code = 1


class UsageError(EsQueueError):
    """A flag, a configuration file or a value that cannot be used."""

    exit_code = 2


class StrategyFailure(UsageError):  # noqa: N818 - the sentence says what failed
    """The user's own strategy raised, or returned something invalid."""


class RedisError(EsQueueError):
    """The Redis server cannot be reached, refuses access, or is unsuitable."""

    exit_code = 3


class RunBusyError(EsQueueError):
    """Another master leads the run."""

    exit_code = 4


class FencedError(RunBusyError):
    """Another master took the run over, so this one can no longer write."""


class EnvironmentFailure(EsQueueError):  # noqa: N818 - EnvironmentError is Python's own name for OSError
    """The environment is unknown, cannot be created, raises, or is not reproducible."""

    exit_code = 5


class MissingPackage(EnvironmentFailure):
    """This host lacks a package or module of the environment. A worker with this error does not
    end the run.
    """


class RunFolderError(EsQueueError):
    """The run's folder cannot be written, or contains nothing to resume."""

    exit_code = 6


class NoRunError(RunFolderError):
    """No folder and no Redis has the run, or a checkpoint of it."""


class DecodeError(EsQueueError):
    """Bytes that are not an es-queue message. The text never repeats the bytes."""
