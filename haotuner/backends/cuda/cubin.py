"""Reader of cubins that needs no tool: architecture, kernels, their registers and parameters.

A cubin is an ELF file of NVIDIA's machine type. A kernel's code is section ``.text.NAME``; ``.nv.info.NAME`` lists its
parameters, ``.nv.info`` the registers and stack of all. The numbers of the attributes are those that ``cuobjdump -elf``
prints by name. Instructions are not read: their encoding is not public.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from haotuner.errors import HaotunerError
from haotuner.spec.occupancy import RESERVED_BYTES

MAGIC = b"\x7fELF\x02\x01\x01"  # 64 bit, little endian, current version
EM_CUDA = 190
ABI_OF_CUDA_13 = 8  # from it on the architecture lies in the flags' second byte, before in the first
RESERVES_SHARED = 90  # from sm_90 on a section of shared memory begins with what the system keeps for itself
HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
SECTION = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym
SHT_SYMTAB, SHT_NOBITS = 2, 8
INFO, SHARED, TEXT, COMPAT, TOOL = ".nv.info", ".nv.shared.", ".text.", ".nv.compat", ".note.nv.tkinfo"
SIZED, BYTE = 4, 2  # formats of an attribute: it is followed by so many bytes; its value is one byte
MAX_THREADS, FRAME_SIZE, REQUIRED_THREADS, PARAMETER, REGISTERS, PARAMETER_2 = 0x05, 0x11, 0x10, 0x17, 0x2F, 0x45
API_VERSION = 0x37  # the compiler's CUDA: 130 for 13.0
ACCELERATOR_TARGET = 9  # of .nv.compat, from CUDA 13 on: 1 for sm_90a; CUDA 12 has a bit of the flags for it
ACCELERATOR_BIT, ACCELERATOR_BIT_OF_CUDA_13 = 0x800, 0x8  # by the ELF's ABI; LLVM's ELF.h: EF_CUDA_ACCELERATORS


class NotACubin(HaotunerError):
    """The bytes are no cubin, or a cut or damaged one."""


@dataclass(slots=True, kw_only=True)
class KernelFacts:
    """One kernel of a cubin."""

    registers: int = 0  # of a thread
    stack_bytes: int = 0  # of a thread: arrays and spills
    max_threads: int = 1024  # of a block, as its launch bounds say
    shared: int = 0  # bytes of static shared memory, without what the system keeps
    code_bytes: int = 0
    parameters: list[tuple[int, int]] = field(default_factory=list)  # offset and size in bytes, in their order


@dataclass(frozen=True, slots=True, kw_only=True)
class CubinFacts:
    """A cubin's architecture, as ``sm_80`` or ``sm_90a``, its compiler's CUDA (130 for 13.0), and its kernels by name."""

    arch: str
    toolkit: int
    kernels: dict[str, KernelFacts]


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    offset: int
    size: int
    link: int


def read_cubin(data: bytes) -> CubinFacts:
    """Facts of a cubin. NotACubin says what is wrong with the bytes; damage never raises anything else."""
    try:
        return _read(data)
    except (struct.error, UnicodeDecodeError, IndexError, OverflowError, ValueError) as error:
        raise NotACubin(f"not a whole cubin ({len(data)} bytes): {error}") from error


def _read(data: bytes) -> CubinFacts:
    identity, _, machine, _, _, _, table, flags, _, _, _, entry, count, names_at = HEADER.unpack_from(data)
    if identity[: len(MAGIC)] != MAGIC or machine != EM_CUDA:
        raise NotACubin(f"not a cubin: ELF machine {machine}, asked for {EM_CUDA} (NVIDIA CUDA)")
    if entry != SECTION.size:
        raise NotACubin(f"not a cubin that is known: a section header of {entry} bytes, asked for {SECTION.size}")
    sections = _sections(data, table, count, names_at)
    kernels: dict[str, KernelFacts] = {}
    toolkit = 0
    for section in sections:
        if section.name.startswith(TEXT):
            kernels[section.name.removeprefix(TEXT)] = KernelFacts(code_bytes=section.size)
    for section in sections:
        if section.name.startswith(f"{INFO}.") and (kernel := kernels.get(section.name[len(INFO) + 1 :])):
            toolkit = max(toolkit, _own(kernel, _bytes(data, section)))
        elif section.name.startswith(SHARED) and (kernel := kernels.get(section.name.removeprefix(SHARED))):
            kernel.shared = section.size
    symbols = next((section for section in sections if section.kind == SHT_SYMTAB), None)
    common = next((section for section in sections if section.name == INFO), None)
    if symbols and common:
        _of_all(kernels, data, common, symbols, sections[symbols.link])
    number = flags >> 8 & 0xFF if identity[8] >= ABI_OF_CUDA_13 else flags & 0xFF
    if number >= RESERVES_SHARED:
        for kernel in kernels.values():
            kernel.shared = max(kernel.shared - RESERVED_BYTES, 0)
    variant = _variant(data, flags, identity[8], {section.name: section for section in sections})
    return CubinFacts(arch=f"sm_{number}{variant}", toolkit=toolkit or _oldest_toolkit(identity[8]), kernels=kernels)


def _oldest_toolkit(abi: int) -> int:
    """Of a cubin whose kernels do not say their compiler's version."""
    return 130 if abi >= ABI_OF_CUDA_13 else 120


def _variant(data: bytes, flags: int, abi: int, sections: dict[str, _Section]) -> str:
    """``a`` of code for one capability alone, ``f`` of a family's, which only the note on the tool tells; else nothing."""
    if flags & (ACCELERATOR_BIT_OF_CUDA_13 if abi >= ABI_OF_CUDA_13 else ACCELERATOR_BIT):
        return "a"
    compat = sections.get(COMPAT)
    note = _bytes(data, compat) if compat else b""
    for at in range(0, len(note) - 3, 4):
        form, attribute, value = struct.unpack_from("<BBB", note, at)
        if form == SIZED:
            break
        if form == BYTE and attribute == ACCELERATOR_TARGET and value:
            return "a"
    tool = sections.get(TOOL)
    match = re.search(rb"-arch sm_[0-9]+([af]?)", _bytes(data, tool)) if tool else None
    return match[1].decode() if match else ""


def _sections(data: bytes, table: int, count: int, names_at: int) -> list[_Section]:
    rows = [SECTION.unpack_from(data, table + index * SECTION.size) for index in range(count)]
    start, size = rows[names_at][4], rows[names_at][5]
    names = data[start : start + size]
    result = []
    for name, kind, _, _, offset, length, link, *_ in rows:
        if kind != SHT_NOBITS and offset + length > len(data):
            raise ValueError(f"a section ends at byte {offset + length}")
        result.append(_Section(_text(names, name), kind, offset, length, link))
    return result


def _bytes(data: bytes, section: _Section) -> bytes:
    return data[section.offset : section.offset + section.size]


def _text(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode()


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Attributes that carry bytes; the others hold a number in their own word."""
    at = 0
    while at + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == SIZED:
            yield attribute, data[at : at + size]
            at += size


def _own(kernel: KernelFacts, info: bytes) -> int:
    """A kernel's parameters and the threads it may have, from its own section; returns its compiler's CUDA."""
    parameters: dict[int, tuple[int, int]] = {}
    toolkit = 0
    for attribute, value in _attributes(info):
        if attribute == PARAMETER:  # index, ordinal, offset, size in the last word's upper 14 bits
            _, ordinal, offset, word = struct.unpack_from("<IHHI", value)
            parameters[ordinal] = (offset, word >> 18)
        elif attribute == PARAMETER_2:  # of large parameters: the size has a word of its own
            _, ordinal, offset, word, size = struct.unpack_from("<IHHII", value)
            parameters[ordinal] = (offset, word >> 18 or size)
        elif attribute in (MAX_THREADS, REQUIRED_THREADS):
            x, y, z = struct.unpack_from("<III", value)
            kernel.max_threads = min(x * y * z, 1024)
        elif attribute == API_VERSION:
            (toolkit,) = struct.unpack_from("<I", value)
    kernel.parameters = [parameters[ordinal] for ordinal in sorted(parameters)]
    return toolkit


def _of_all(kernels: dict[str, KernelFacts], data: bytes, common: _Section, symbols: _Section, strings: _Section) -> None:
    """Facts from the common section, added by symbol: registers and stack."""
    names = _bytes(data, strings)
    for attribute, value in _attributes(_bytes(data, common)):
        if attribute not in (REGISTERS, FRAME_SIZE):
            continue
        symbol, number = struct.unpack_from("<II", value)
        name = _text(names, SYMBOL.unpack_from(data, symbols.offset + symbol * SYMBOL.size)[0])
        if (kernel := kernels.get(name)) is None:
            continue
        if attribute == REGISTERS:
            kernel.registers = number
        else:
            kernel.stack_bytes = number
