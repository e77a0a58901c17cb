"""Machine code of object files by what it does: names, error texts and where sources lie change nothing."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_PROGBITS, _SYMTAB, _RELA, _NOBITS, _INIT_ARRAY = 1, 2, 4, 8, 14
_ALLOC, _MERGE, _STRINGS = 0x2, 0x10, 0x20
_UNDEFINED, _FIRST_RESERVED = 0, 0xFF00
_OWN = "ht_"  # what every exported name of ours begins with; others are the C library's


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    flags: int
    data: bytes
    size: int
    link: int
    info: int

    @property
    def is_code(self) -> bool:
        """True if it is loaded, and neither unwinding tables nor texts for people."""
        loaded = self.kind in (_PROGBITS, _NOBITS, _INIT_ARRAY) and self.flags & _ALLOC
        return bool(loaded) and self.name != ".eh_frame" and not self.is_text

    @property
    def is_text(self) -> bool:
        return self.flags & (_MERGE | _STRINGS) == _MERGE | _STRINGS


@dataclass(frozen=True, slots=True)
class _Symbol:
    name: str
    section: int
    value: int


class _Object:
    """Sections and symbols of one 64-bit little-endian ELF object file. ValueError of anything else."""

    def __init__(self, data: bytes) -> None:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("no 64-bit little-endian ELF object file")
        (start,) = struct.unpack_from("<Q", data, 0x28)
        size, count, names = struct.unpack_from("<HHH", data, 0x3A)
        heads = [struct.unpack_from("<IIQQQQII", data, start + index * size) for index in range(count)]
        bodies = [b"" if head[1] == _NOBITS else data[head[4] : head[4] + head[5]] for head in heads]
        self.sections = [
            _Section(_text(bodies[names], head[0]), head[1], head[2], body, head[5], head[6], head[7])
            for head, body in zip(heads, bodies, strict=True)
        ]
        table = next((one for one in self.sections if one.kind == _SYMTAB), None)
        self.symbols: list[_Symbol] = []
        if table is not None:
            texts = self.sections[table.link].data
            for name, _, _, section, value, _ in struct.iter_unpack("<IBBHQQ", table.data):
                self.symbols.append(_Symbol(_text(texts, name), section, value))

    def relocations(self, index: int) -> Iterator[tuple[int, int, _Symbol, int]]:
        """Offset, type, symbol and addend of what the linker fills in, in a section."""
        for section in self.sections:
            if section.kind == _RELA and section.info == index:
                for offset, info, addend in struct.iter_unpack("<QQq", section.data):
                    yield offset, info & 0xFFFFFFFF, self.symbols[info >> 32], addend


def machine_code(objects: Sequence[bytes]) -> str:
    """Hash of the code and data of object files that are linked together, in the order of the files.

    What they name is told by where it is defined, by its name only where that is in none of them. ValueError of a file that
    is no 64-bit ELF object.
    """
    files = [_Object(data) for data in objects]
    defined = {
        symbol.name: (number, file.sections[symbol.section].name, symbol.value)
        for number, file in enumerate(files)
        for symbol in file.symbols
        if symbol.name and _UNDEFINED < symbol.section < _FIRST_RESERVED
    }
    from_elsewhere: dict[str, int] = {}
    digest = hashlib.sha256()
    for file in files:
        for index, section in enumerate(file.sections):
            if not section.is_code or not section.size:
                continue
            filled = [
                (offset, kind, _target(file, symbol, addend, defined, from_elsewhere))
                for offset, kind, symbol, addend in file.relocations(index)
            ]
            digest.update(json.dumps([section.name, section.size, filled]).encode() + b"\0" + section.data)
    return digest.hexdigest()[:32]


def _target(
    file: _Object,
    symbol: _Symbol,
    addend: int,
    defined: Mapping[str, tuple[int, str, int]],
    from_elsewhere: dict[str, int],
) -> object:
    if symbol.section >= _FIRST_RESERVED:
        return symbol.value, addend
    if symbol.section != _UNDEFINED:
        section = file.sections[symbol.section]
        return "text" if section.is_text else (section.name, symbol.value + addend)
    if symbol.name in defined:
        return *defined[symbol.name], addend
    if symbol.name.startswith(_OWN):  # the library's tables: by the order in which they are read
        return from_elsewhere.setdefault(symbol.name, len(from_elsewhere)), addend
    return symbol.name, addend


def _text(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode(errors="replace")
