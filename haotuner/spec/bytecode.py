"""Bytecode of a model's schedule: int64 words, little endian; runtime/native/model/bytecode.h says in which order."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from haotuner.spec.size_arithmetic import OPERATIONS

MAGIC, VERSION = 0x4C45444F4D5448, 6
_SIZES = {op: index for index, op in enumerate(("dim", "number", *OPERATIONS))}
_ALIAS, _LOOPS, _OP, _APPEND = 0, 1, 2, 3
_X, _WEIGHT, _OUT, _NAMED = 0, 1, 2, 3
_ROLE_PART, _AXIS_PART = 8, 64  # more than a role or an axis: of an operand that is a part of its tensor's rows
# DLPack's codes of element types.
TYPES: Mapping[str, tuple[int, int]] = {
    "fp32": (2, 32), "fp64": (2, 64), "fp16": (2, 16), "bf16": (4, 16), "bool": (6, 8),
    **{f"int{bits}": (0, bits) for bits in (8, 16, 32, 64)}, **{f"uint{bits}": (1, bits) for bits in (8, 16, 32, 64)},
}  # fmt: skip

# Of a product's weight that lies as int8, and behind it a number in fp32 for each of the first axis.
SCALED, _SCALED_TYPE = "scaled", (3, 8)

_SEGMENT, _RANDOM, _LOOP = 4, 7, 8
_BETWEEN = {"nonzero": 5, "counted": 6}
_DECIDED, _CHOSEN, _WHEN, _REQUIRED = 9, 10, 11, 12
_LAWS = ("normal", "uniform")


def bytecode_of(document: Mapping[str, Any], weights_bytes: int) -> bytes | None:
    """File of a schedule's words. None of a chain whose document has no tensors: only Python goes through its segments."""
    if "tensors" not in document:
        return None
    words = schedule_words(document, weights_bytes)
    return struct.pack(f"<{len(words)}q", *words)


def words_of(raw: bytes) -> array[int]:
    """Words of a file of bytecode, in memory of their own. ValueError where the last one is cut."""
    words = array("q")
    words.frombytes(raw)
    return words


def group_name(index: int) -> str:
    """Name of a group's function in the pack's library, by its number in the document."""
    return f"ht_group_{index}"


def schedule_words(document: Mapping[str, Any], weights_bytes: int) -> list[int]:
    """Of a schedule (``executable.py``) and the bytes of its weights. KeyError where it names what it has not."""
    sizes, tensors, weights = document["sizes"], document["tensors"], document.get("weights", {})
    dims = {name: index for index, name in enumerate(document["dims"])}
    tensors_and_weights = (*sorted(tensors.items()), *sorted(weights.items()))  # whatever their order is: JSON keeps none
    tensor_index = {name: index for index, (name, _) in enumerate(tensors_and_weights)}
    words = [*_text(document["name"]), weights_bytes, len(dims)]
    words += [word for name in dims for word in _text(name)]
    words.append(len(sizes))
    for operation, *operands in sizes:
        words += [_SIZES[operation], *_of_size(operation, operands, dims)]
    equal = document.get("equal", [])
    words.append(len(equal))
    words += [line for pair in equal for line in pair]
    words.append(len(tensor_index))
    for name, item in tensors_and_weights:
        kind = _SCALED_TYPE if item["dtype"] == SCALED else TYPES[item["dtype"]]
        words += [*_text(name), *kind, item.get("offset", -1), *_counted(item["shape"])]
    for ends in (document["inputs"], document["outputs"]):
        words.append(len(ends))
        words += [word for end in ends for word in (*_text(end["name"]), tensor_index[end.get("tensor", end["name"])])]
    if "chain" in document:
        steps = [_of_chain(step, tensor_index, dims) for step in document["chain"]]
        words += [1, -1, 0, len(steps), *(word for step in steps for word in step)]
        words += _defaults(document["inputs"])
        return [MAGIC, VERSION, len(words) + 4, _checksum(words), *words]
    ways = document.get("ways") or [{"first": 0, "end": len(document["steps"]), "line": None, "most": 0}]
    words.append(len(ways))
    for index, way in enumerate(ways):
        words += [-1 if way["line"] is None else way["line"], way["most"]]
        words += [tensor_index[item] for item in way["outputs"]] if index else []
        words.append(way["end"] - way["first"])
        words += [word for step in document["steps"][way["first"] : way["end"]] for word in _step(step, tensor_index)]
    caches = document.get("caches", {"capacity": -1, "table": []})
    words += [len(caches["table"]), caches["capacity"], *(word for row in caches["table"] for word in row)]
    indices, required, checks = (document.get(name, []) for name in ("indices", "required", "weights_crc32"))
    defaults = _defaults(document["inputs"])
    expected = document.get("expected", [])
    words += [len(indices)] if indices or required or checks or defaults or expected else []
    for position, first, axes, rows, reader in indices:
        words += [position, first, len(axes), *(line for axis in axes for line in axis), rows, *_text(reader)]
    words += [len(required)] if required or checks or defaults or expected else []
    words += [word for line, requirement in required for word in (line, *_text(requirement))]
    words += _counted(checks) if checks else []
    words += defaults or ([0] if expected else [])
    words += [len(expected), *(word for table in expected for word in _of_times(table))] if expected else []
    return [MAGIC, VERSION, len(words) + 4, _checksum(words), *words]


def _of_times(table: Mapping[str, Any]) -> list[int]:
    """Expected times of one thread count (``spec/expected_times.py``)."""
    nodes = [word for sizes in table["sizes"] for word in _counted(sizes)]
    return [table["threads"], _bits(table["low"]), _bits(table["high"]), *nodes, *map(_bits, table["us"])]


def _of_size(operation: str, operands: Sequence[Any], dims: Mapping[str, int]) -> list[int]:
    """Two words: an operand that is alone stands twice; a real number is the bits of a double."""
    (first,) = operands[:1]
    if operation == "dim":
        return [dims[first], 0]
    if operation == "number":
        return [_bits(first) if isinstance(first, float) else first, 0]
    return [first, operands[-1]]


def _bits(real: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", real))[0])


def _text(text: str) -> list[int]:
    raw = text.encode()
    padded = raw + b"\0" * (8 - len(raw) % 8)
    return [len(raw), *struct.unpack(f"<{len(padded) // 8}q", padded)]


def _defaults(inputs: Sequence[Mapping[str, Any]]) -> list[int]:
    """Of inputs that a call may leave out: their places, shapes and elements; no word where there are none."""
    own = [(index, operand["default"]) for index, operand in enumerate(inputs) if "default" in operand]
    words = [
        word
        for position, item in own
        for word in (position, *_counted(item["shape"]), *_bytes(bytes.fromhex(item["bytes"])))
    ]
    return [len(own), *words] if own else []


def _bytes(raw: bytes) -> list[int]:
    """Number of bytes, then as many words as hold them."""
    padded = raw + b"\0" * (-len(raw) % 8)
    return [len(raw), *struct.unpack(f"<{len(padded) // 8}q", padded)]


def _counted(numbers: Sequence[int]) -> list[int]:
    return [len(numbers), *numbers]


def _checksum(words: Sequence[int]) -> int:
    result = 0xCBF29CE484222325
    for word in words:
        result = ((result ^ (word & 0xFFFFFFFFFFFFFFFF)) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return result - (1 << 64) if result >> 63 else result


def _step(step: Mapping[str, Any], places: Mapping[str, int]) -> list[int]:
    if step["do"] == "alias":
        return [_ALIAS, places[step["out"]], places[step["of"]]]
    if step["do"] == "loops":
        return [_LOOPS, *_text(group_name(step["group"])), *_counted([places[tensor] for tensor in step["tensors"]])]
    if step["do"] == "append":
        new = step["new"]
        ends = (places[step["past"]], places[new["of"]], places[step["out"]])
        part = new.get("part", ())
        axis = step["axis"] + (_AXIS_PART if part else 0)
        return [_APPEND, *ends, axis, *_counted(new["shape"]), *_counted(new["order"]), *part]
    operands = _OPERANDS[step["do"]](step, places)
    return [_OP, *_text(step["op"]), len(operands), *(word for operand in operands for word in operand)]


def _of_chain(step: Mapping[str, Any], places: Mapping[str, int], dims: Mapping[str, int]) -> list[int]:
    """A segment, or what the host computes before it."""
    if step["do"] == "segment":
        ends = [_counted([places[item] for item in step[kind]]) for kind in ("reads", "makes")]
        return [_SEGMENT, *_text(step["model"]), *ends[0], *ends[1]]
    if step["do"] == "loop":
        return _of_loop(step, places, dims)
    if step["do"] in _OF_BRANCHES:
        return _OF_BRANCHES[step["do"]](step, places, dims)
    out = places[step["out"]]
    if step["do"] == "random":
        law = step["attributes"]
        bits = [_bits(law[end]) for end in ("low", "high")]
        return [_RANDOM, out, _LAWS.index(law["law"]), law["number"], int("seed" in law), law.get("seed", 0), *bits]
    of, position = places[step["of"]], [step["place"]] if step["do"] == "counted" else []
    return [_BETWEEN[step["do"]], of, *position, dims[step["dim"]], out]


def _when(step: Mapping[str, Any], places: Mapping[str, int], dims: Mapping[str, int]) -> list[int]:
    return [_WHEN, dims[step["dim"]], step["is"], step["skip"]]


def _required(step: Mapping[str, Any], places: Mapping[str, int], dims: Mapping[str, int]) -> list[int]:
    return [_REQUIRED, step["line"], *_text(step["words"])]


def _decided(step: Mapping[str, Any], places: Mapping[str, int], dims: Mapping[str, int]) -> list[int]:
    by = (places[step["of"]], -1) if "of" in step else (-1, step["line"])
    return [_DECIDED, *by, dims[step["dim"]]]


def _chosen(step: Mapping[str, Any], places: Mapping[str, int], dims: Mapping[str, int]) -> list[int]:
    values = [word for axis, dim in step["told"] for word in (axis, dims[dim])]
    sides = (places[item] for item in step["of"])
    return [_CHOSEN, *sides, dims[step["dim"]], places[step["out"]], len(step["told"]), *values]


_OF_BRANCHES = {"when": _when, "required": _required, "decided": _decided, "chosen": _chosen}


def _of_loop(step: Mapping[str, Any], places: Mapping[str, int], dims: Mapping[str, int]) -> list[int]:
    def at(tensor: str | None) -> int:
        return -1 if tensor is None else places[tensor]

    words = [_LOOP, *(at(step[name]) for name in ("limit", "asked", "turn", "goes_on"))]
    words += [-1, -1] if step["dim"] is None else [dims[step["dim"]], at(step["turns"])]
    for kind in ("carried", "rows", "made"):
        words += [len(step[kind]), *(at(end) for ends in step[kind] for end in ends)]
    words.append(len(step["changes"]))
    for number, axis, *terms in step["changes"]:
        words += [number, axis, *(-1 if dim is None else dims[dim] for dim in terms)]
    return [*words, len(step["steps"]), *(word for item in step["steps"] for word in _of_chain(item, places, dims))]


def _layer(step: Mapping[str, Any], places: Mapping[str, int]) -> list[list[int]]:
    """A dense layer sees its tensors as matrices, a convolution as they are, or as one line."""
    x, out = step["x_shape"] or None, step["out_shape"] or None
    return [
        _operand(_X, places[step["x"]], x),
        _operand(_WEIGHT, places[step["weight"]]),
        *(_operand(_NAMED, places[item], name=name) for name, item in sorted(step["constants"].items())),
        *(_operand(_NAMED, places[item], name=name) for name, item in sorted(step.get("rows", {}).items())),
        *(_operand(_NAMED, places[item], out, name=name) for name, item in sorted(step["passed"].items())),
        _operand(_OUT, places[step["out"]], out),
    ]


def _product(step: Mapping[str, Any], places: Mapping[str, int]) -> list[list[int]]:
    x, w = step["x"], step["w"]
    result = [
        _operand(_X, places[x["of"]], x["shape"] or None, x["order"], part=x.get("part", ())),
        _operand(_WEIGHT, places[w["of"]], w["shape"] or None, w["order"], part=w.get("part", ())),
        *(_operand(_NAMED, places[item], name=name) for name, item in sorted(step["passed"].items())),
        _turned(step, places),
    ]
    if step["scale"] is not None:
        result.append(_operand(_NAMED, -1, name="scale", number=step["scale"]))
    return result


def _online(step: Mapping[str, Any], places: Mapping[str, int]) -> list[list[int]]:
    named = [
        _operand(_NAMED, places[item["of"]], item["shape"] or None, item["order"], name, part=item.get("part", ()))
        for name, item in sorted(step["views"].items())
    ]
    return [*named, _turned(step, places)]


def _turned(step: Mapping[str, Any], places: Mapping[str, int]) -> list[int]:
    """The result, written where its reordering lies."""
    order = step["order"]
    return _operand(_OUT, places[step["out"]], order=[order.index(axis) for axis in range(len(order))])


def _operand(
    role: int,
    tensor: int,
    shape: Sequence[int] | None = None,
    order: Sequence[int] = (),
    name: str = "",
    number: float = 0.0,
    part: Sequence[int] = (),
) -> list[int]:
    """``part``: the first element of each row of the tensor that is taken, and how many are; empty: all are."""
    return [
        role + (_ROLE_PART if part else 0),
        *(_text(name) if role == _NAMED else ()),
        tensor,
        *(struct.unpack("<i", struct.pack("<f", number)) if tensor < 0 else ()),
        *([-1] if shape is None else _counted(shape)),
        *_counted(order),
        *part,
    ]


_OPERANDS = {"dense": _layer, "conv": _layer, "product": _product, "online": _online}
