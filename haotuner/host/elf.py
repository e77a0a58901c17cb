"""Check that a file is a whole shared library for x86-64 before it is mapped: a cut one kills the process (SIGBUS)."""

from __future__ import annotations

import struct

MAGIC = b"\x7fELF\x02\x01\x01"  # 64 bit, little endian, current version
ET_DYN, EM_X86_64 = 3, 62  # <elf.h>
PT_LOAD = 1
HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
SEGMENT = struct.Struct("<IIQQQQQQ")  # Elf64_Phdr


def elf_problem(data: bytes) -> str:
    """Reason why ``data`` cannot be mapped as a library on x86-64; empty when it can."""
    if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
        return "is not a library for x86-64 Linux"
    _, kind, machine, _, _, table, _, _, _, entry, count, *_ = HEADER.unpack_from(data)
    if machine != EM_X86_64 or kind != ET_DYN:
        return f"is not a library for x86-64 Linux (ELF machine {machine}, type {kind})"
    if entry != SEGMENT.size or table + count * SEGMENT.size > len(data):
        return "is cut: its segment table lies beyond its end"
    for index in range(count):
        kind, _, offset, _, _, size, _, _ = SEGMENT.unpack_from(data, table + index * SEGMENT.size)
        if kind == PT_LOAD and offset + size > len(data):
            return f"is cut: segment {index} ends at byte {offset + size} of {len(data)}"
    return ""
