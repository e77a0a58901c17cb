"""Methods by their source: rewritten to one call of layer and activation, or found to read a layer's weight.

Layers whose weight a module's forward reads, as ``F.linear(x, self.qkv.weight)`` does, by its source.

Methods rewritten so that ``self.act(self.layer(x))`` is one call of both; every path computes what it computed.

A module that takes another's result alone is read off the source: as an argument, ``self.act(self.layer(x))``, or from a
local that is overwritten or never read again, ``h = self.layer(x)`` and ``h = self.act(h)`` right behind. Such calls become
``run_chain((self.layer, self.act), x)``, which calls both where nothing fused serves them. What a later statement calls is
looked up behind the arguments, as they may change it: ``run_chain((self.layer,), x, haotuner_then=(self.act,))``. No forward
is run.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType
from typing import Any

import torch

_HARMLESS = {"dtype", "device", "shape", "size", "dim", "ndim", "numel", "requires_grad", "is_cuda", "is_meta", "itemsize"}


@dataclass(frozen=True, slots=True)
class WeightReads:
    """A layer whose weight is read."""

    method: str  # that reads it: Block.forward
    called: bool  # whether the layer is used in another way, too


def weight_reads(parent: torch.nn.Module, key: str) -> WeightReads | None:
    """Reads of the weight of child ``key`` by the methods that a module's forward calls; None where they do not.

    Reads of its type, device and sizes do not count. Who is left out: methods whose source cannot be read.
    """
    kind, waiting, seen = type(parent), ["forward"], {"forward"}
    reader, called = "", False
    while waiting:
        name = waiting.pop()
        owner = next((cls for cls in kind.__mro__ if name in vars(cls)), torch.nn.Module)
        function = vars(owner).get(name)
        if owner is torch.nn.Module or not isinstance(function, FunctionType):
            continue
        names = {*function.__code__.co_names}
        waiting += [cls for cls in names - seen if isinstance(getattr(kind, cls, None), FunctionType)]
        seen |= names
        if key in names:
            read, used = _uses(function, key)
            reader, called = reader or (f"{owner.__name__}.{name}" if read else ""), called or used
    return WeightReads(reader, called) if reader else None


def _uses(function: FunctionType, key: str) -> tuple[bool, bool]:
    """Two flags: a method reads the weight of ``self.key``; it uses ``self.key`` in another way."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function.__code__)))
    except (OSError, TypeError, SyntaxError):
        return False, True
    above: dict[ast.AST, ast.AST] = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    read = used = False
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Attribute) and node.attr == key and _is_self(node.value, function)):
            continue
        outer: Any = above.get(node)
        if not isinstance(outer, ast.Attribute):
            used = True
        elif outer.attr == "weight":
            read = read or not _harmless(above.get(outer))
    return read, used


def _is_self(node: ast.AST, function: FunctionType) -> bool:
    return isinstance(node, ast.Name) and node.id == function.__code__.co_varnames[0]


def _harmless(node: Any) -> bool:
    """True if what stands around ``layer.weight`` reads no numbers."""
    if isinstance(node, ast.Attribute):
        return node.attr in _HARMLESS
    if isinstance(node, ast.Compare):
        return all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops)
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "hasattr")


Path = tuple[str, ...]  # attributes and constant indices from ``self`` to a module: ("block", "0")
THEN = "haotuner_then"  # the keyword for modules of a later statement
RUN_CHAIN = "__haotuner_run_chain__"  # the name of ``run_chain`` in a rewritten method, a variable of its closure
_READS_LOCALS = {"locals", "vars", "eval", "exec", "_getframe", "currentframe"}


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A method whose chains of calls are joined. ``function`` is None where there are none, or they cannot be read."""

    function: FunctionType | None = None
    chains: tuple[tuple[Path, ...], ...] = ()  # in the order of the calls
    unread: str = ""  # why the source cannot be read; empty if it was


def rewritten(function: FunctionType, owner: type, names: Set[str], run_chain: Callable[..., Any]) -> Rewritten:
    """``function``, defined in the class ``owner``, with its chains of calls joined.

    ``names``: of child modules that may be in a chain. A method may change what the next call meets, and is in none.
    """
    code = function.__code__
    if code.co_argcount == 0:
        return Rewritten()
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError, IndentationError):
        return Rewritten(unread="its source is not there to be read")
    definition = tree.body[0] if tree.body else None
    if not isinstance(definition, ast.FunctionDef) or definition.name != code.co_name:
        return Rewritten()  # a lambda, a generator's part, or what a decorator made
    definition.decorator_list = []
    ast.increment_lineno(definition, code.co_firstlineno - 1)
    imports = _imports(code.co_filename)
    own = _compiled(definition, owner, code, (), imports)
    if own is None or not _same_code(own, code):
        return Rewritten(unread="its source is not what runs")
    joining = _Joining(definition, code, names)
    if not joining.readable:
        return Rewritten()
    joining.block(definition.body)
    if not joining.chains:
        return Rewritten()
    joined = _compiled(ast.fix_missing_locations(definition), owner, code, (RUN_CHAIN,), imports)
    if joined is None:
        return Rewritten(unread="its source cannot be compiled again")
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True)) | {RUN_CHAIN: CellType(run_chain)}
    made = FunctionType(
        joined, function.__globals__, function.__name__, function.__defaults__, tuple(cells[v] for v in joined.co_freevars)
    )
    made.__kwdefaults__, made.__annotations__ = function.__kwdefaults__, function.__annotations__
    made.__qualname__, made.__module__, made.__doc__ = function.__qualname__, function.__module__, function.__doc__
    made.__dict__.update(function.__dict__)
    return Rewritten(made, tuple(joining.chains))


def _imports(file: str) -> list[ast.stmt]:
    """Imports at the top of a file: a name's method is called by other instructions where the name was imported."""
    try:
        waiting: list[Any] = list(ast.parse("".join(linecache.getlines(file))).body)
    except (SyntaxError, ValueError):
        return []
    result: list[ast.stmt] = []
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.module != "__future__"):
            if not any(name.name == "*" for name in node.names):
                result.append(node)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)
    return result


def _compiled(
    definition: ast.FunctionDef, owner: type, like: CodeType, more: tuple[str, ...], imports: list[ast.stmt]
) -> CodeType | None:
    """The code of a method: in a class of the same name, inside a function that has its closure's variables."""
    import __future__

    free = [name for name in (*like.co_freevars, *more) if name != "__class__"]
    variables = [ast.Assign([ast.Name(name, ast.Store())], ast.Constant(None)) for name in free]
    inside = ast.ClassDef(owner.__name__, [], [], [definition], [])
    nothing = ast.arguments([], [], None, [], [], None, [])
    # A method may name its class, as in super(Net, self): a global where the class was defined in a module.
    known: list[ast.stmt] = [] if owner.__name__ in like.co_freevars else [ast.Global([owner.__name__])]
    outer = ast.FunctionDef("enclosing", nothing, [*known, *variables, inside], [])
    module = ast.fix_missing_locations(ast.Module([*imports, outer], []))
    flags = 0
    for name in __future__.all_feature_names:
        flags |= getattr(__future__, name).compiler_flag & like.co_flags
    try:
        whole = compile(module, like.co_filename, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    for part in (outer.name, owner.__name__, definition.name):
        inner = [constant for constant in whole.co_consts if isinstance(constant, CodeType) and constant.co_name == part]
        if len(inner) != 1:
            return None
        whole = inner[0]
    return whole if isinstance(whole, CodeType) else None


def _same_code(code: CodeType, other: CodeType) -> bool:
    """True if two codes do the same, wherever they lie in a file."""
    facts = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_argcount",
             "co_posonlyargcount", "co_kwonlyargcount", "co_exceptiontable")  # fmt: skip
    if any(getattr(code, fact) != getattr(other, fact) for fact in facts) or len(code.co_consts) != len(other.co_consts):
        return False
    if (code.co_flags ^ other.co_flags) & ~inspect.CO_NESTED:
        return False
    return all(
        _same_code(mine, its)
        if isinstance(mine, CodeType) and isinstance(its, CodeType)
        else type(mine) is type(its) and repr(mine) == repr(its)
        for mine, its in zip(code.co_consts, other.co_consts, strict=True)
    )


@dataclass
class _Joining:
    """One run over a method's tree, which it changes."""

    definition: ast.FunctionDef
    code: CodeType
    names: Set[str]
    chains: list[tuple[Path, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._self = self.code.co_varnames[0]
        names = [node for node in ast.walk(self.definition) if isinstance(node, ast.Name)]
        self._reads = Counter(node.id for node in names if not isinstance(node.ctx, ast.Store))
        grown = [node.target for node in ast.walk(self.definition) if isinstance(node, ast.AugAssign)]
        self._reads.update(node.id for node in grown if isinstance(node, ast.Name))
        stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        inner = [node.arg for node in ast.walk(self.definition) if isinstance(node, ast.arg)]
        # A method that gives ``self`` another value, or looks at its locals, stays as it is.
        self.readable = (
            self._self not in stored and inner.count(self._self) == 1 and not _READS_LOCALS & {*self.code.co_names}
        )

    def block(self, statements: list[ast.stmt], *, merging: bool = True) -> None:
        """Join the calls of a block in place. ``merging``: also over its statements; not where an exception is caught."""
        for statement in statements:
            within = merging and not isinstance(statement, ast.Try | getattr(ast, "TryStar", ast.Try))
            for name, value in ast.iter_fields(statement):
                if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                    self.block(value, merging=within and not isinstance(statement, ast.ClassDef))
                elif isinstance(value, list) and value and isinstance(value[0], ast.ExceptHandler | ast.match_case):
                    for part in value:
                        self.block(part.body, merging=within)
                elif isinstance(value, list):
                    setattr(statement, name, [self._joined(statement) for statement in value])
                elif isinstance(value, ast.AST):
                    setattr(statement, name, self._joined(value))
        if merging:
            self._merge(statements)
        for statement in statements:
            self.chains += [_chain_of(call) for call in _calls(statement) if len(_chain_of(call)) > 1]

    def _joined(self, node: Any) -> Any:
        """An expression with ``self.b(self.a(x))`` joined, inner ones first."""
        if not isinstance(node, ast.AST):
            return node
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                setattr(node, name, [self._joined(statement) for statement in value])
            elif isinstance(value, ast.AST):
                setattr(node, name, self._joined(value))
        path = self._path(node.func) if isinstance(node, ast.Call) else ()
        if not isinstance(node, ast.Call) or not path:
            return node
        node.chain, node.modules = (path,), [node.func]  # type: ignore[attr-defined]
        argument = _only_argument(node)
        return _together(argument, node) if argument is not None and _chain_of(argument) else node

    def _path(self, node: ast.expr) -> Path:
        """Path from ``self`` to what is called; empty where it is no chain of attributes and constant indices."""
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name):
                return (node.attr,) if node.value.id == self._self and node.attr in self.names else ()
            before = self._path(node.value)
            return (*before, node.attr) if before else ()
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and type(node.slice.value) in (int, str):
            before = self._path(node.value)
            return (*before, str(node.slice.value)) if before else ()
        return ()

    def _merge(self, statements: list[ast.stmt]) -> None:
        """Join ``h = self.a(x)`` with the statement behind it, where that takes h and nothing reads it later."""
        index = 0
        while index + 1 < len(statements):
            first, second = statements[index], statements[index + 1]
            name = self._local(first)
            call = second.value if isinstance(second, ast.Assign | ast.Return) else None
            argument = _only_argument(call) if isinstance(call, ast.Call) and _chain_of(call) else None
            if name and isinstance(argument, ast.Name) and argument.id == name and self._is_dead(name, second):
                second.value = _in_order(first.value, call)  # type: ignore[attr-defined]
                del statements[index]
                index = max(index - 1, 0)
            else:
                index += 1

    def _local(self, statement: ast.stmt) -> str:
        """The local that a statement gives a module's result; empty where it does something else."""
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or not _chain_of(statement.value):
            return ""
        target = statement.targets[0]
        if not isinstance(target, ast.Name):
            return ""
        local = target.id in self.code.co_varnames and target.id not in self.code.co_cellvars
        return target.id if local else ""

    def _is_dead(self, name: str, statement: ast.stmt) -> bool:
        """True if nothing reads a local behind a statement that reads it once."""
        if isinstance(statement, ast.Return) or self._reads[name] == 1:
            return True
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        return len(targets) == 1 and isinstance(targets[0], ast.Name) and targets[0].id == name


def _chain_of(node: Any) -> tuple[Path, ...]:
    result: tuple[Path, ...] = getattr(node, "chain", ())
    return result


def _calls(statement: ast.stmt) -> Iterator[Any]:
    """Calls of a statement's own expressions, without those of the blocks inside it."""
    waiting: list[Any] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Call):
            yield node
        inside = [
            node
            for node in ast.iter_child_nodes(node)
            if not isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case)
        ]
        waiting += inside


def _only_argument(call: Any) -> Any:
    """The argument of a call that takes one; None of another."""
    arguments = call.args[1:] if len(_chain_of(call)) > 1 else call.args
    alone = len(arguments) == 1 and not call.keywords and not isinstance(arguments[0], ast.Starred)
    return arguments[0] if alone else None


def _together(first: Any, second: Any) -> ast.Call:
    """One call of two chains in one expression; the second takes the result of the first and nothing else."""
    return _chain_call(first, second, [*first.modules, *second.modules], [])


def _in_order(first: Any, second: Any) -> ast.Call:
    """Call of two statements in order: what the second calls is looked up later."""
    return _chain_call(first, second, first.modules, [*getattr(first, "later", ()), *second.modules])


def _chain_call(first: Any, second: Any, modules: list[Any], later: list[Any]) -> ast.Call:
    rewritten = isinstance(first.func, ast.Name) and first.func.id == RUN_CHAIN
    arguments = first.args[1:] if rewritten else first.args
    keywords = [keyword for keyword in first.keywords if keyword.arg != THEN]
    if later:
        keywords.append(ast.keyword(THEN, ast.Tuple(later, ast.Load())))
    call = ast.Call(ast.Name(RUN_CHAIN, ast.Load()), [ast.Tuple(modules, ast.Load()), *arguments], keywords)
    call.chain, call.modules, call.later = (*first.chain, *second.chain), modules, later  # type: ignore[attr-defined]
    return ast.copy_location(call, first)
