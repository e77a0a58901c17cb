"""A file of ``torch.export``, opened with care: what torch then reads is a copy of its data, without anything that runs.

torch unpickles objects of any class, evaluates sizes that are written as text, and calls any function that a node names. So
pickles must hold tensors alone, sizes arithmetic alone, nodes known operators alone; sample inputs and code are left out.
"""

from __future__ import annotations

import ast
import io
import json
import logging
import re
import shutil
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from haotuner.errors import UsageError
from haotuner.frontends.onnx.table import refuse
from haotuner.host.files import open_regular

NAMES = "haotuner_dimensions.txt"  # beside the program in its file: a line for each symbol, with its name
LARGEST_FILE = 1 << 36  # bytes
LARGEST_TEXT = 1 << 30  # of the graph, and of other members that are read whole
LONGEST_SIZE, LARGEST_EXPONENT = 20_000, 64  # characters of a size as text; powers in it
_GRAPH = "models/model.json"
_CONFIGS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
_COPIED = re.compile(r"archive_format|archive_version|byteorder|version|\.data/version|extra/[\w.]+|extra_files/[\w.]+"
                     r"|data/weights/weight_\d+|data/constants/tensor_\d+")  # fmt: skip
_PICKLES = re.compile(r"data/(weights|constants)/model\.pt|serialized_(state_dict|constants)\.(pt|json)")
_SAMPLES = re.compile(r"data/sample_inputs/model\.pt|serialized_example_inputs\.pt")
_CODE = re.compile(r"data/aotinductor/.*|.*\.(so|py|pyc)")
_OBJECTS = re.compile(r"data/constants/(custom|opaque)_obj_.*")
_SIZE_OPERATORS = re.compile(
    r"_operator\.(eq|ne|le|ge|lt|gt|neg|pos|mul|add|sub|floordiv|mod|pow|truediv|and_|or_|lshift|rshift|getitem)"
    r"|math\.(trunc|floor|ceil|sqrt)|torch\.(sym_(not|int|float|ite|max|min|sqrt|sum)|_sym_sqrt)"
)
_OPERATOR = re.compile(r"torch\.ops\.([a-zA-Z]\w*)\.([a-zA-Z]\w*|_[a-zA-Z]\w*|__(?:and|or|xor|lshift|rshift)__)(?:\.(\w+))?")
# Of ``torch.ops.higher_order``: those that call graphs of the file itself.
_WRAPPERS = """
wrap_with_set_grad_enabled wrap_with_autocast wrap cond while_loop scan map_impl associative_scan invoke_subgraph
strict_mode tag_activation_checkpoint
"""
_POWERS = ("Pow", "PowByNatural", "FloatPow", "LShift")
_FUNCTIONS = """
FloorDiv ModularIndexing Where PythonMod Mod CleanDiv CeilToInt FloorToInt CeilDiv LShift RShift PowByNatural FloatPow
FloatTrueDiv IntTrueDiv IsNonOverlappingAndDenseIndicator TruncToFloat TruncToInt RoundToInt RoundDecimal ToFloat Identity
Max Min Abs Eq Ne Lt Le Gt Ge And Or Not Add Mul Pow Integer Rational Float Symbol floor ceiling sqrt Equality Unequality
LessThan GreaterThan StrictLessThan StrictGreaterThan
"""
_ARITHMETIC = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Name, ast.Constant, ast.Call, ast.operator,
    ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context, ast.keyword,
)  # fmt: skip
_FOREIGN_TYPES = ("collections.defaultdict", "__enum__")  # of inputs: torch imports any module for these


@dataclass(frozen=True, slots=True)
class ReadProgram:
    """``program``: torch's ExportedProgram. ``names``: text beside it. ``guards``: what it takes for granted of sizes."""

    program: Any
    names: str
    guards: tuple[str, ...]


def read_program(path: Path, torch: Any) -> ReadProgram:
    """The program of a file that ``torch.export.save`` wrote.

    Raises:
        UsageError: no regular file, no such archive, damaged, or with something in it that torch would run.
    """
    try:
        with open_regular(path, LARGEST_FILE) as file, zipfile.ZipFile(file) as archive:
            copy, guards = _copied(archive, path, torch)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:  # cut short, or encrypted
        raise UsageError(f"{path} is no program of torch.export: {error}; write it with haotuner.torch.export") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path} is damaged: {type(error).__name__}: {str(error)[:200]}; export it again") from error
    extra: dict[str, Any] = {NAMES: ""}
    try:
        with _quiet():
            program = torch.export.load(copy, extra_files=extra)
    except Exception as error:  # torch raises whatever its zip reader or schema find
        reason = str(error).partition("\n")[0][:300]
        raise UsageError(f"{path} is no program of torch.export: {type(error).__name__}: {reason}") from error
    names = extra[NAMES]
    return ReadProgram(program, names.decode() if isinstance(names, bytes) else names, guards)


@contextmanager
def _quiet() -> Iterator[None]:
    """torch.export logs tracebacks of what it raises; one line says it."""
    logger = logging.getLogger("torch.export")

    def silent(record: logging.LogRecord) -> bool:
        return record.levelno > logging.WARNING

    logger.addFilter(silent)
    try:
        yield
    finally:
        logger.removeFilter(silent)


def _copied(archive: zipfile.ZipFile, path: Path, torch: Any) -> tuple[io.BytesIO, tuple[str, ...]]:
    """Copy of what torch may load, and the guards, which it would run as code."""
    members = _members(archive, path)
    new = io.BytesIO()
    guards: tuple[str, ...] = ()
    pickled: set[str] = set()
    for config in _CONFIGS:
        if config in members:
            pickled |= _pickled(_json(archive, members[config]), config)
    with zipfile.ZipFile(new, "w") as copy:
        for name, info in members.items():
            if _CODE.fullmatch(name):
                raise UsageError(f"{path} holds compiled code ({name}), which would run here; export the model alone")
            if _OBJECTS.fullmatch(name):
                raise UsageError(f"{path} holds an object of a class ({name}), which torch would run code for; "
                                 "export the model without it")  # fmt: skip
            if name in (_GRAPH, "serialized_exported_program.json"):
                program = _json(archive, info)
                guards = tuple(str(item) for item in program.pop("guards_code", None) or ())
                _only_data(program)
                copy.writestr(_copied_path(name), json.dumps(program))
            elif name in _CONFIGS:
                copy.writestr(_copied_path(name), json.dumps(_json(archive, info)))
            elif _SAMPLES.fullmatch(name):
                copy.writestr(_copied_path(name), b"" if "/" in name else _saved(((), {}), torch))
            elif _PICKLES.fullmatch(name) or name in pickled:
                copy.writestr(_copied_path(name), _only_tensors(archive, info, path, torch))
            elif _COPIED.fullmatch(name):
                with archive.open(info) as source, copy.open(_copied_path(name), "w", force_zip64=True) as target:
                    shutil.copyfileobj(source, target, 1 << 22)
    new.seek(0)
    return new, guards


def _members(archive: zipfile.ZipFile, path: Path) -> dict[str, zipfile.ZipInfo]:
    """Members of the archive, by name below its own folder."""
    result: dict[str, zipfile.ZipInfo] = {}
    whole = [item for item in archive.infolist() if not item.is_dir()]
    legacy = any(item.filename == "serialized_exported_program.json" for item in whole)
    for item in whole:
        name = item.filename if legacy else item.filename.partition("/")[2]
        if item.compress_type != zipfile.ZIP_STORED:
            raise UsageError(f"{path}: {item.filename} is compressed, which torch.export never does; export the model again")
        if name in result:
            raise UsageError(f"{path}: {item.filename} is there twice; export the model again")
        result[name] = item
    if not legacy and _GRAPH not in result:
        raise UsageError(f"{path} is no program of torch.export: it has no {_GRAPH}; write it with haotuner.torch.export")
    if sum(item.file_size for item in whole) > LARGEST_FILE:
        raise UsageError(f"{path}: its members overlap; export the model again")
    return result


def _copied_path(name: str) -> str:
    """Path of a member in the copy: torch wants a folder around all of them, of the older format none."""
    return name if name.startswith(("serialized_", "extra_files/")) or name == "version" else f"model/{name}"


def _json(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Any:
    return json.loads(_text(archive, info))


def _text(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    if info.file_size > LARGEST_TEXT:
        raise ValueError(f"{info.filename} has {info.file_size} bytes; at most {LARGEST_TEXT} are read")
    return archive.read(info)


def _pickled(config: Any, name: str) -> set[str]:
    """Members that a list of weights or constants calls pickles."""
    folder = name.rpartition("/")[0]
    return {f"{folder}/{item['path_name']}" for item in config["config"].values() if item["use_pickle"]}


def _only_tensors(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, torch: Any) -> bytes:
    """A pickle written anew, of tensors and plain values alone."""
    with archive.open(info) as file:
        data = file.read()
    try:
        stored = torch.load(io.BytesIO(data), map_location=lambda storage, _: storage, weights_only=True) if data else None
    except Exception as error:  # torch raises whatever its unpickler finds
        reason = str(error).partition("\n")[0][:160]
        raise UsageError(
            f"{path}: {info.filename} is a pickle of more than tensors, which may run code ({reason}); "
            "export the model again with haotuner.torch.export"
        ) from error
    return b"" if stored is None else _saved(stored, torch)


def _saved(value: Any, torch: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _only_data(program: Any) -> None:
    """UsageError where a graph has a size that is no arithmetic, or calls what is no operator; metadata is left out."""
    unknown: dict[str, list[str]] = defaultdict(list)
    waiting = [program]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting.extend(value)
        if not isinstance(value, dict):
            continue
        if isinstance(value.get("expr_str"), str):
            _only_arithmetic(value["expr_str"])
        for key in ("target", "as_operator"):
            name = value.get(key)
            if isinstance(name, str) and (key == "as_operator" or "inputs" in value) and not _is_operator(name):
                unknown[name].append(f"node {value.get('name') or '?'}")
        for key in ("in_spec", "out_spec"):
            if any(item in str(value.get(key)) for item in _FOREIGN_TYPES):
                raise UsageError("inputs or outputs of a class of another module; export with tuples, lists and dicts")
        if isinstance(value.get("metadata"), dict) and "target" in value:
            value["metadata"] = {key: item for key, item in value["metadata"].items() if key == "nn_module_stack"}
        waiting.extend(value.values())
    refuse(unknown, "Export the model without them, or write them in other operators")


def _is_operator(name: str) -> bool:
    if _SIZE_OPERATORS.fullmatch(name):
        return True
    parts = _OPERATOR.fullmatch(name)
    if parts is None:
        return False
    namespace, own, overload = parts.groups()
    return own in _WRAPPERS.split() and overload is None if namespace == "higher_order" else overload is not None


def _only_arithmetic(text: str) -> None:
    """UsageError where a size is written as anything but names, numbers and arithmetic of them: torch evaluates it."""
    if len(text) > LONGEST_SIZE:
        raise UsageError(f"a size of {len(text)} characters; at most {LONGEST_SIZE} are read")
    try:
        whole = ast.parse(text, mode="eval")
    except (SyntaxError, MemoryError) as error:
        raise UsageError(f"size {text[:80]!r} is no arithmetic") from error
    names = {id(node.args[0]) for node in ast.walk(whole) if isinstance(node, ast.Call) and _names_a_number(node)}
    for node in ast.walk(whole):
        fits = isinstance(node, _ARITHMETIC)
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            fits = name in _FUNCTIONS.split() and (name not in _POWERS or len(node.args) == 2 and _small_power(*node.args))
        elif isinstance(node, ast.Constant):
            fits = isinstance(node.value, (bool, int, float)) or id(node) in names
        elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Pow, ast.LShift)):
            fits = _small_power(node.left, node.right)
        if not fits:
            raise UsageError(f"size {text[:80]!r} is no arithmetic of sizes, and torch would evaluate it")


def _names_a_number(call: ast.Call) -> bool:
    """True if a call is ``Symbol('s0')`` or ``Float('0.5')``, whose text is a name or a number and no expression."""
    if not (isinstance(call.func, ast.Name) and call.func.id in ("Symbol", "Float") and len(call.args) == 1):
        return False
    text = call.args[0].value if isinstance(call.args[0], ast.Constant) else None
    return (
        isinstance(text, str)
        and re.fullmatch(r"\w{1,100}" if call.func.id == "Symbol" else r"[-+.\de]{1,100}", text) is not None
    )


def _small_power(base: ast.expr, exponent: ast.expr) -> bool:
    """True if a power is no number that takes long to write out."""
    if _has_size(exponent):
        return True
    number = _number(exponent)
    return number is not None and abs(number) <= LARGEST_EXPONENT and (_has_size(base) or _number(base) is not None)


def _number(node: ast.expr) -> float | None:
    """A number, or ``Integer(number)``; else None."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Integer" and len(node.args) == 1:
        return _number(node.args[0])
    if isinstance(node, ast.UnaryOp):
        return _number(node.operand)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) else None


def _has_size(node: ast.AST) -> bool:
    """True if a size is in an expression that no number stands for."""
    inside = list(ast.walk(node))
    functions = {id(item.func) for item in inside if isinstance(item, ast.Call)}
    return any(isinstance(item, ast.Name) and (id(item) not in functions or item.id == "Symbol") for item in inside)
