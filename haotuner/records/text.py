"""The text of a file that somebody hands in: gzipped or not, marked by Windows or not, cut or not."""

from __future__ import annotations

import zlib
from pathlib import Path

from haotuner.errors import EnvironmentMissing, UsageError

_GZIP = b"\x1f\x8b"


def read_text(path: Path, wanted: str) -> tuple[str, str]:
    """The text as far as it can be had, and why not further; the second is empty for a whole file.

    Args:
        path: the file.
        wanted: what to name instead if there is no such file.

    Raises:
        EnvironmentMissing: the file cannot be read.
        UsageError: its gzip data is damaged.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise EnvironmentMissing(f"cannot read {path}: {error.strerror}; name {wanted}") from error
    except ValueError as error:  # a zero byte in the path
        raise UsageError(f"{str(path)!r} names no file: {error}; name {wanted}") from error
    stopped = ""
    if data.startswith(_GZIP):
        data, stopped = _unpacked(path, data)
    return data.decode("utf-8-sig", errors="replace"), stopped  # "-sig": without the mark that some editors put in front


def _unpacked(path: Path, data: bytes) -> tuple[bytes, str]:
    """All members: gzip data appended to gzip data is one text, and how parallel packers write."""
    parts = []
    while data.startswith(_GZIP):
        unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            parts.append(unpacker.decompress(data))
        except zlib.error as error:
            raise UsageError(f"{path}: the gzip data is damaged ({error}); get the file again") from error
        if not unpacker.eof:
            return b"".join(parts), "the gzip data ends early"
        data = unpacker.unused_data
    padding = not data.strip(b"\0")  # tapes and block devices fill up with zeros
    return b"".join(parts), "" if padding else f"{len(data)} bytes after the gzip data are something else"
