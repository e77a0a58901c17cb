"""The text of a file that somebody hands in: packed by gzip or bzip2 or not, marked by Windows or not, cut or not."""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from haotuner.errors import EnvironmentMissing, UsageError
from haotuner.host.files import read_regular

SIZE_LIMIT_BYTES = 1 << 30  # unpacked or not, a million records; a small gzip file may unpack to more than any memory


@dataclass(frozen=True)
class _Packing:
    """A format of packed data: what it begins with, what unpacks one stream of it, and what that raises at damage."""

    name: str
    magic: bytes
    unpacker: Callable[[], Any]
    damage: type[Exception]


_PACKINGS = (
    _Packing("gzip", b"\x1f\x8b", partial(zlib.decompressobj, wbits=zlib.MAX_WBITS | 16), zlib.error),
    _Packing("bzip2", b"BZh", bz2.BZ2Decompressor, OSError),
)


def read_text(path: Path, pattern: str) -> tuple[str, str]:
    """The text as far as it can be had, and why not further; the second is empty for a whole file.

    Args:
        path: the file.
        pattern: what to name instead if there is no such file.

    Raises:
        EnvironmentMissing: the file is there and cannot be read, is no regular file, or has more than ``SIZE_LIMIT_BYTES``.
        UsageError: there is no such file; its packed data is damaged, or unpacks to more than that.
    """
    try:
        data = read_regular(path, SIZE_LIMIT_BYTES)
    except FileNotFoundError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; name {pattern}") from error
    except OSError as error:
        raise EnvironmentMissing(f"cannot read {path}: {error.strerror}; name {pattern}") from error
    except ValueError as error:  # a zero byte in the path
        raise UsageError(f"{str(path)!r} names no file: {error}; name {pattern}") from error
    stopped = ""
    for packing in _PACKINGS:
        if data.startswith(packing.magic):
            data, stopped = _unpacked(path, data, packing)
            break
    return data.decode("utf-8-sig", errors="replace"), stopped  # "-sig": without the mark that some editors put in front


def _unpacked(path: Path, data: bytes, packing: _Packing) -> tuple[bytes, str]:
    """All streams, since packed data may follow packed data, as parallel packers write it; of a torn one what is whole."""
    parts: list[bytes] = []
    room = SIZE_LIMIT_BYTES
    while data.startswith(packing.magic):
        unpacker = packing.unpacker()
        try:
            parts.append(unpacker.decompress(data, room + 1))
        except packing.damage as error:
            raise UsageError(f"{path}: the {packing.name} data is damaged ({error}); get the file again") from error
        room -= len(parts[-1])
        if room < 0:
            raise UsageError(
                f"{path}: it unpacks to more than {SIZE_LIMIT_BYTES >> 20:,} MiB, the most that is imported; split it"
            )
        if not unpacker.eof:
            return b"".join(parts), f"the {packing.name} data ends early"
        data = unpacker.unused_data
    padding = not data.strip(b"\0")  # tapes and block devices fill up with zeros
    return b"".join(parts), "" if padding else f"{len(data)} bytes after the {packing.name} data are something else"
