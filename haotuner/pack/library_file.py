"""The library of a pack as a file: whole, the one that the manifest names, and an ELF file of this kind of host.

Check that a file is a whole shared library for x86-64 before it is mapped: a cut one kills the process (SIGBUS).
"""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path

from haotuner.errors import PackInvalid, PackMismatch
from haotuner.pack.folder import LIBRARY_LIMIT_BYTES, Folder, steadily
from haotuner.pack.manifest import Manifest

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


def check_library(pack: Path, manifest: Manifest) -> None:
    """PackInvalid or PackMismatch unless the library is whole and the one that the manifest names; maps nothing."""
    steadily(pack, lambda folder: check_library_in(folder, manifest))


def check_library_in(folder: Folder, manifest: Manifest) -> os.stat_result:
    """Facts of the library's file of an open pack; raises as ``check_library``."""
    path = folder.path / manifest.library
    try:
        data, facts = folder.read_below(manifest.library, LIBRARY_LIMIT_BYTES)
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or error
        raise PackInvalid(f"{folder.path}: cannot read {manifest.library} ({words}); restore the pack") from error
    digest = hashlib.sha256(data).hexdigest()
    if digest != manifest.sha256:
        raise PackInvalid(
            f"{path}: its sha256 is {digest[:16]}…, the manifest says {manifest.sha256[:16]}…; the file was changed or cut. "
            "Restore the pack or tune again; none of its code was run"
        )
    problem = elf_problem(data)
    if problem:
        raise PackMismatch(f"{path} {problem}; tune on this kind of host")
    return facts
