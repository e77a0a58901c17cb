"""The text of a file that somebody hands in: packed by gzip or bzip2 or not, marked by Windows or not, cut or not."""

from __future__ import annotations

import bz2
import zlib
from pathlib import Path

from haotuner.errors import EnvironmentMissing, UsageError
from haotuner.files import read_regular

_GZIP, _BZIP2 = b"\x1f\x8b", b"BZh"
SIZE_LIMIT_BYTES = 1 << 30  # unpacked or not, a million records; a small gzip file may unpack to more than any memory


def read_text(path: Path, wanted: str) -> tuple[str, str]:
    """The text as far as it can be had, and why not further; the second is empty for a whole file.

    Args:
        path: the file.
        wanted: what to name instead if there is no such file.

    Raises:
        EnvironmentMissing: the file is there and cannot be read, is no regular file, or has more than ``SIZE_LIMIT_BYTES``.
        UsageError: there is no such file; its packed data is damaged, or unpacks to more than that.
    """
    try:
        data = read_regular(path, SIZE_LIMIT_BYTES)
    except FileNotFoundError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; name {wanted}") from error
    except OSError as error:
        raise EnvironmentMissing(f"cannot read {path}: {error.strerror}; name {wanted}") from error
    except ValueError as error:  # a zero byte in the path
        raise UsageError(f"{str(path)!r} names no file: {error}; name {wanted}") from error
    stopped = ""
    if data.startswith(_GZIP):
        data, stopped = _unpacked(path, data)
    elif data.startswith(_BZIP2):
        data, stopped = _unpacked_blocks(path, data)
    return data.decode("utf-8-sig", errors="replace"), stopped  # "-sig": without the mark that some editors put in front


def _unpacked(path: Path, data: bytes) -> tuple[bytes, str]:
    """All members: gzip data appended to gzip data is one text, and how parallel packers write."""
    parts: list[bytes] = []
    room = SIZE_LIMIT_BYTES
    while data.startswith(_GZIP):
        unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            parts.append(unpacker.decompress(data, room + 1))
        except zlib.error as error:
            raise UsageError(f"{path}: the gzip data is damaged ({error}); get the file again") from error
        room -= len(parts[-1])
        if room < 0:
            raise UsageError(
                f"{path}: it unpacks to more than {SIZE_LIMIT_BYTES >> 20:,} MiB, the most that is imported; split it"
            )
        if not unpacker.eof:
            return b"".join(parts), "the gzip data ends early"
        data = unpacker.unused_data
    padding = not data.strip(b"\0")  # tapes and block devices fill up with zeros
    return b"".join(parts), "" if padding else f"{len(data)} bytes after the gzip data are something else"


def _unpacked_blocks(path: Path, data: bytes) -> tuple[bytes, str]:
    """All streams of bzip2 data, one after the other; of a torn one as many blocks as are whole."""
    parts: list[bytes] = []
    room = SIZE_LIMIT_BYTES
    while data.startswith(_BZIP2):
        unpacker = bz2.BZ2Decompressor()
        try:
            parts.append(unpacker.decompress(data, room + 1))
        except OSError as error:
            raise UsageError(f"{path}: the bzip2 data is damaged ({error}); get the file again") from error
        room -= len(parts[-1])
        if room < 0:
            raise UsageError(
                f"{path}: it unpacks to more than {SIZE_LIMIT_BYTES >> 20:,} MiB, the most that is imported; split it"
            )
        if not unpacker.eof:
            return b"".join(parts), "the bzip2 data ends early"
        data = unpacker.unused_data
    return b"".join(parts), "" if not data.strip(b"\0") else f"{len(data)} bytes after the bzip2 data are something else"
