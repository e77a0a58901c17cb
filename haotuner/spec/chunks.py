"""Checksums of a file by chunk, which its readers compare where a hash of the whole would take too long."""

from __future__ import annotations

import zlib

CHUNK_BYTES = 1 << 20  # as runtime/native/model/weights.c


def chunk_checksums(data: bytes | bytearray) -> list[int]:
    """CRC-32 (of IEEE 802.3, as zlib's) of each chunk; the last one may be shorter, and no bytes have none."""
    view = memoryview(data)
    return [zlib.crc32(view[at : at + CHUNK_BYTES]) for at in range(0, len(view), CHUNK_BYTES)]
