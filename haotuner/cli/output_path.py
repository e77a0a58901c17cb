"""Places that a verb is to write to, looked at before the work starts rather than after it."""

from __future__ import annotations

import os
from pathlib import Path

from haotuner.errors import UsageError


def check_output_path(path: Path, option: str = "--out") -> None:
    """UsageError unless a file can be written at ``path``; nothing is left there, and what is there stays as it is."""
    if not path.name:
        raise UsageError(f"{option} {str(path)!r} names no file; name the file to write")
    try:
        if not path.parent.is_dir():
            raise UsageError(f"{option} {path}: there is no folder {path.parent}; make it first")
        if path.exists() and not path.is_file():
            what = "a folder" if path.is_dir() else "a device or a pipe"
            raise UsageError(f"{option} {path} is {what}; name a new file, or one to replace")
        if path.exists() and not os.access(path, os.W_OK):
            raise UsageError(f"{option} {path} may not be written; name another file, or allow it with chmod")
        beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")  # as long a name as any that will be needed
        beside.touch()
        beside.unlink()
    except OSError as error:
        raise UsageError(f"{option} {path} cannot be written: {error.strerror}; name another place") from error
