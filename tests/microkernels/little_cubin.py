"""A cubin made by hand, for tests of what is read of one."""

from __future__ import annotations

import struct

FLAGS = {"sm_80": 0x6005004, "sm_90": 0x6005A04, "sm_90a": 0x6005A0C}  # of CUDA 13's ABI


def little_cubin(machine: int = 190, flags: int = FLAGS["sm_80"], abi: int = 8) -> bytes:
    """A cubin of one kernel `f`, laid out by hand as CUDA 13 does; ``abi=7`` reads its flags as CUDA 12's."""
    names = b"\0.shstrtab\0.text.f\0.nv.info.f\0"
    info = struct.pack("<BBHIHHI", 4, 0x17, 12, 0, 0, 0, 80 << 18 | 0x1F000)
    info += struct.pack("<BBH", 3, 0x1B, 80) + struct.pack("<BBHIII", 4, 0x05, 12, 128, 1, 1)
    parts, offsets, at = [names, b"\0" * 32, info], [], 64
    for part in parts:
        offsets.append(at)
        at += len(part)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01\x41" + bytes([abi]), 2, machine, 1, 0, 0, at, flags, 64, 56, 0, 64, 4, 1
    )
    rows = [
        (0, 0, 0, 0),
        (1, 3, *_of(offsets, parts, 0)),
        (11, 1, *_of(offsets, parts, 1)),
        (19, 1, *_of(offsets, parts, 2)),
    ]
    return (
        header + b"".join(parts) + b"".join(struct.pack("<IIQQQQIIQQ", n, k, 0, 0, o, s, 0, 0, 1, 0) for n, k, o, s in rows)
    )


def _of(offsets: list[int], parts: list[bytes], index: int) -> tuple[int, int]:
    return offsets[index], len(parts[index])
