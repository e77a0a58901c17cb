"""Errors a user can act on: what was asked, what was found, what to do next.

Each class carries the exit code of the command line (README, *Exit codes*). Programming mistakes raise the
built-in ``ValueError`` and ``TypeError`` and are not caught.
"""

from __future__ import annotations


class HaotunerError(Exception):
    """Root of every error that haotuner raises on purpose; the message is written for a person."""

    exit_code = 1


class UsageError(HaotunerError):
    """The request itself is wrong: a spec, a range, a path that is in the way."""

    exit_code = 2


class UnknownDevice(UsageError):
    """No such device on this host and no profile of that name."""


class NothingLegal(UsageError):
    """No micro-kernel fits the operator on this device."""


class EnvironmentMissing(HaotunerError):
    """The machine lacks something: a compiler, a package, an instruction set, a readable file."""

    exit_code = 4


class PackageMissing(EnvironmentMissing, ImportError):
    """An optional package is not installed."""


class RecordsUnusable(HaotunerError):
    """The record store is damaged, locked, newer than this haotuner, or not a record store."""


class RecordsUnreachable(RecordsUnusable):
    """The server of the record store does not answer; it may again."""


class PackInvalid(HaotunerError):
    """A pack's files are missing, changed, or of another schema.

    None of its code was run, except where the message says that its library lacks a function.
    """

    exit_code = 5


class PackMismatch(HaotunerError):
    """A sound pack that this host cannot serve (instruction set, device, platform)."""

    exit_code = 4


class PackClosed(HaotunerError):
    """The pack was closed before the call."""


class WorkerLost(HaotunerError):
    """The measuring process could not be started or kept alive."""
