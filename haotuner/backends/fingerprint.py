"""Fingerprints of measurements: measuring effort, C text by what it means, and machine code by what it does.

Fingerprints of measurements, and C text by what it means: comments, layout and names of locals change nothing.

Machine code of object files by what it does: names, error texts and where sources lie change nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from haotuner.spec.cold import CPU_CACHES, UNKNOWN_CACHE_BYTES
from haotuner.spec.device import Device

# Raised by whoever changes what a sample is: requests to the timing processes, corrections of samples, blocking of a call.
# Older records count for no later run then. tests/measure/test_measuring_protocol.py says when.
MEASURING = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Stopping rule and state of one kind of measurement."""

    sample_us: int = 250  # a sample is a batch at least this long: 1000x the clock's resolution, under a scheduler tick
    limit_us: int = 6_000  # no new sample after this
    least: int = 3  # samples in any case, so that there is a median
    most: int = 32
    cold_factor: int = CPU_CACHES  # calls rotate over weights of this many last-level caches: nothing survives a round

    def cold_bytes(self, device: Device) -> int:
        """Bytes of weights to rotate over; without a known L3 the L2 counts, without both 32 MiB."""
        last = device.l3_bytes or (device.l2_bytes or 0) * device.compute_units or UNKNOWN_CACHE_BYTES
        return self.cold_factor * last


_TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/                          # comments
    |"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'            # texts, in which "/*" begins no comment
    |^[ \t]*\#(?:\\\n|[^\n])*                       # a directive with its continued lines
    |\.?[0-9](?:[eEpP][+-]|[\w.'])*                 # numbers
    |[A-Za-z_]\w*|->|::|\.\.\.|[^\s\w]""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*")
# A name right behind one of these is no declared one.
_NO_TYPE = frozenset(
    ("return", "else", "case", "goto", "sizeof", "typedef", "struct", "union", "enum", "class", "typename", "namespace")
    + ("using", "operator", "new", "delete", "throw", "do", "template", "extern", "static", "inline", "const", "volatile")
    + ("restrict", "__restrict__", "if", "while", "for", "switch", "alignas", "asm", "__asm__")
)
_POINTED = re.compile(r"(void|bool|char|short|int|long|float|double|unsigned|signed|half|auto|ht_\w+|\w+_t)")
_ENDS = frozenset("=;,)[:{")


def fingerprint(device: Device, policy: Policy, words: Mapping[str, str]) -> str:
    """Hash of what makes times comparable whatever is timed: the device, the toolchain (``words``), how times are taken."""
    seen = {
        "device": [device.id, device.arch, device.compute_units, device.l2_bytes, device.l3_bytes],
        "policy": asdict(policy),
        "measuring": MEASURING,
    }
    return _short(json.dumps([seen, dict(words)], sort_keys=True))


def fingerprint_with(common: str, code: Sequence[str]) -> str:
    """Fingerprint of a measurement: the common one with the code of the kernels that ran (``Backend.code_request``)."""
    return _short(json.dumps([common, *code]))


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def meaning(text: str) -> str:
    """C, C++ or CUDA text of which comments, layout and the names of parameters and locals are taken away.

    Declarations are recognised by their form alone. A name that is not recognised stays as it is, so that a renamed one
    makes another text; two texts of different meaning never become one.
    """
    lines = (" ".join(_numbered(item)) for item in _items(list(_tokens(text))))
    return "\n".join(lines)


_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


def included(texts: Sequence[str], folders: Sequence[Path]) -> list[Path]:
    """Headers that C texts include between quotes, and those that these include, in the order of their names.

    ``folders``: searched behind that of the including header. A name in none of them is the system's, and left out.
    """
    headers: dict[Path, str] = {}
    waiting = [(text, folders) for text in texts]
    while waiting:
        text, searched = waiting.pop()
        for name in _INCLUDE.findall(text):
            path = next((folder / name for folder in searched if (folder / name).is_file()), None)
            if path is not None and path.resolve() not in headers:
                headers[path.resolve()] = content = path.read_text(encoding="utf-8")
                waiting.append((content, (path.parent, *folders)))
    return sorted(headers, key=lambda header: (header.name, header.parent.name))


def _tokens(text: str) -> Iterator[str]:
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token.startswith(("//", "/*")):
            continue
        if token.lstrip().startswith("#"):
            token = _COMMENT.sub(lambda part: " " if part[0].startswith("/") else part[0], token.replace("\\\n", " "))
            yield "#" + " ".join(token.lstrip()[1:].split())
        else:
            yield token


def _items(tokens: Sequence[str]) -> Iterator[list[str]]:
    """Directives, declarations and functions of a file, one by one."""
    item: list[str] = []
    depth = 0
    for token in tokens:
        if token.startswith("#") and depth == 0 and not item:
            yield [token]
            continue
        item.append(token)
        depth += (token in "{(") - (token in "})") if len(token) == 1 else 0
        if depth == 0 and token in (";", "}"):
            yield item
            item = []
    if item:
        yield item


def _numbered(item: Sequence[str]) -> list[str]:
    """Tokens of an item; of a function its parameters and locals become numbers in the order of their declarations."""
    if "{" not in item or item[max(0, item.index("{") - 1)] != ")":
        return list(item)
    names: dict[str, str] = {}
    depth = 0
    fields = {name for before, name in zip(item, item[1:], strict=False) if before in (".", "->", "::")}
    for at, token in enumerate(item):
        depth += (token in "{(") - (token in "})") if len(token) == 1 else 0
        declared = depth > 0 and _NAME.fullmatch(token) and token not in fields and _is_declared(item, at)
        if declared and token not in names:
            names[token] = f"${len(names)}"
    return [names.get(token, token) for token in item]


def _is_declared(item: Sequence[str], at: int) -> bool:
    """True if a name stands behind a type, by its form, and before what may follow a declared name."""
    if at == 0 or at + 1 >= len(item) or item[at + 1] not in _ENDS:
        return False
    before = at - 1
    while before > 0 and item[before] in ("*", "&", "const", "restrict", "__restrict__"):
        before -= 1
    word = item[before]
    if not _NAME.fullmatch(word) or word in _NO_TYPE:
        return False
    return before == at - 1 or _POINTED.fullmatch(word) is not None


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
        table = next((section for section in self.sections if section.kind == _SYMTAB), None)
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
