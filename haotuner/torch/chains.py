"""Chains of modules: the norm and the activation that follow a layer, called at once with it.

The norm and the activation that follow a layer, as a ``Sequential`` or a method's source shows them; none is run.
"""

from __future__ import annotations

import copyreg
from abc import ABCMeta
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Generic

import torch

from haotuner.torch.convolution import is_layer
from haotuner.torch.folding import is_norm, step_of
from haotuner.torch.layer import PackedLinear
from haotuner.torch.rewriting import Path, Rewritten, rewritten


def run_chain(modules: Sequence[Any], *args: Any, haotuner_then: Sequence[Any] = (), **kwargs: Any) -> Any:
    """The result of the last module: the first takes the arguments, each other the result of the one before.

    ``haotuner_then``: modules behind ``modules``, which the caller looked up behind the arguments.
    Whether a layer's op computes what follows is looked up at every call, from what the modules are at that moment.
    """
    modules = (*modules, *haotuner_then)
    position, alone = 0, torch.nn.modules.module._has_any_global_hook()
    while position < len(modules):
        module = modules[position]
        count = 0 if alone or not isinstance(module, PackedLinear) else module.followers(modules, position)
        result = module.with_followers(*args, **kwargs) if count else module(*args, **kwargs)
        args, kwargs, position = (result,), {}, position + 1 + count
    return args[0]


def sequential_forward(self: Any, input: Any) -> Any:
    """The forward of a ``Sequential`` as a chain; who indexes or iterates it meets its modules as they are."""
    return run_chain(list(self), input)


class ChainClass(type):
    """Class of a module whose methods call chains at once; pickled as the class that it was made from."""

    _haotuner_source: type


class AbstractChainClass(ChainClass, ABCMeta):
    """``ChainClass`` for a class with abstract methods, as one that has ``abc.ABC`` among its bases."""


def _itself(kind: type) -> type:
    return kind


def _reduced(made: Any) -> Any:
    return _itself, (made._haotuner_source,)


copyreg.pickle(ChainClass, _reduced)
copyreg.pickle(AbstractChainClass, _reduced)


def why_no_subclass(source: type) -> str:
    """Reason that a class like ``source`` cannot be made without running code of its author; empty if it can."""
    if type(source) not in (type, ABCMeta):
        return f"{source.__name__} has a metaclass, {type(source).__name__}"
    if any("__init_subclass__" in vars(base) for base in source.__mro__[:-1] if base is not Generic):
        return f"{source.__name__} looks at its subclasses"
    return ""


def class_with(source: type, methods: Mapping[str, FunctionType | Callable[..., Any]]) -> type:
    """A class like ``source``, of which ``why_no_subclass`` says nothing, with some methods replaced."""
    words = ("__module__", "__qualname__", "__doc__")
    facts = {word: getattr(source, word) for word in words} | {"_haotuner_source": source}
    kind = AbstractChainClass if isinstance(source, ABCMeta) else ChainClass
    return kind(source.__name__, (source,), {**facts, **methods})


def class_of(module: torch.nn.Module) -> type:
    """The class that a module was written as, whether or not its chains are called at once."""
    kind = type(module)
    return kind._haotuner_source if isinstance(kind, ChainClass) else kind


Sequential = torch.nn.Sequential


@dataclass(frozen=True, slots=True)
class Chain:
    """Modules behind a layer where its caller calls both: a norm, and an activation of what it, or the layer, gives."""

    norm: Any = None
    activation: Any = None
    callers: tuple[torch.nn.Module, ...] = ()  # modules whose methods call the chain

    @property
    def step(self) -> str:
        """The activation as an epilogue step; empty without one."""
        return "" if self.activation is None else step_of(self.activation)


@dataclass(frozen=True, slots=True)
class Chains:
    """Chains that follow the layers of a model, and what could not be looked at."""

    by_layer: Mapping[int, Chain] = field(default_factory=dict)  # by the id of each linear and convolution
    classes: Mapping[int, type] = field(default_factory=dict)  # by the id of a caller: a class that calls its chains at once
    unread: Mapping[str, str] = field(default_factory=dict)  # name of a module whose methods cannot be read -> why

    def after(self, layer: torch.nn.Module) -> Chain:
        """Chain that follows a layer; empty where that is not known."""
        return self.by_layer.get(id(layer), Chain())


def chains(model: torch.nn.Module) -> Chains:
    """Chains behind each linear and convolution that has one place in the model. The model is read, never called."""
    uses = Counter(id(module) for whole in model.modules() for module in whole._modules.values())
    reader, result = _Reader(), dict[int, Chain]()
    for name, caller in list(model.named_modules()):
        for line in reader.lines(name, caller):
            for index, layer in enumerate(line):
                if layer is None or not is_layer(layer) or uses[id(layer)] != 1:
                    continue
                chain, other = _chain(line[index + 1 :], caller), result.get(id(layer))
                if other is not None:  # the longest counts, and every caller may call it
                    longer = max(chain, other, key=_length)
                    chain = Chain(longer.norm, longer.activation, (*other.callers, caller))
                result[id(layer)] = chain
    return Chains(result, reader.classes, reader.unread)


def _length(chain: Chain) -> int:
    return (chain.norm is not None) + (chain.activation is not None)


def _chain(behind: list[Any], caller: torch.nn.Module) -> Chain:
    norm = behind[0] if behind and is_norm(behind[0]) else None
    rest = behind[1:] if norm is not None else behind
    return Chain(norm, rest[0] if rest and rest[0] is not None and step_of(rest[0]) else None, (caller,))


class _Reader:
    """One run over the callers of a model; each method and class is looked at once."""

    def __init__(self) -> None:
        self.classes: dict[int, type] = {}
        self.unread: dict[str, str] = {}
        self._methods: dict[tuple[FunctionType, frozenset[str]], Rewritten] = {}
        self._classes: dict[tuple[type, tuple[Any, ...]], type] = {}

    def lines(self, name: str, caller: torch.nn.Module) -> Iterator[list[Any]]:
        """Runs of modules, each of which takes the result of the one before and is alone in that; None for another thing."""
        kind: Any = class_of(caller)
        if isinstance(caller, torch.jit.ScriptModule):  # compiled: no method of it is Python
            return
        why = why_no_subclass(kind)
        if kind.forward is Sequential.forward and not why:
            self.classes[id(caller)] = self._class(kind, {"forward": sequential_forward})
            yield list(caller)
            return
        joined: dict[str, Any] = {}
        layers, behind = _names_of(caller)
        names = layers | behind
        for method, owner, function in _methods(kind, layers, behind):
            if (function, names) not in self._methods:
                self._methods[function, names] = rewritten(function, owner, names, run_chain)
            answer = self._methods[function, names]
            if answer.unread:
                self.unread[name or kind.__name__] = f"{method}: {answer.unread}"
            if answer.function is not None:
                joined[method] = answer.function
            if answer.function is not None and not why:
                yield from ([_at(caller, path) for path in chain] for chain in answer.chains)
        if joined and why:
            self.unread[name or kind.__name__] = why
        elif joined:
            self.classes[id(caller)] = self._class(kind, joined)

    def _class(self, kind: type, methods: dict[str, Any]) -> type:
        key = kind, tuple(methods.items())
        if key not in self._classes:
            self._classes[key] = class_with(kind, methods)
        return self._classes[key]


def _names_of(caller: torch.nn.Module) -> tuple[frozenset[str], frozenset[str]]:
    """Names of children that are or have a layer, and of those that are or have what may follow one."""
    children = {key: list(child.modules()) for key, child in caller._modules.items() if child is not None}
    layers = frozenset(key for key, inside in children.items() if any(map(is_layer, inside)))
    return layers, frozenset(key for key, inside in children.items() if any(is_norm(m) or step_of(m) for m in inside))


def _methods(kind: type, layers: Set[str], behind: Set[str]) -> Iterator[tuple[str, type, FunctionType]]:
    """(name, class that defines it, function) of methods that may call a layer and what follows it."""
    if not layers or not behind:
        return
    seen: set[str] = set()
    for owner in kind.__mro__:
        if owner is torch.nn.Module:
            return
        for name, function in vars(owner).items():
            if name in seen or name == "__init__":  # which names the modules, and calls none of them
                continue
            seen.add(name)
            if isinstance(function, FunctionType) and _names(function, layers) and _names(function, behind):
                yield name, owner, function


def _names(function: FunctionType, keys: Set[str]) -> bool:
    return not keys.isdisjoint(function.__code__.co_names)


def _at(caller: torch.nn.Module, path: Path) -> Any:
    """The module at a path; None where there is none."""
    result: Any = caller
    for key in path:
        result = result._modules.get(key) if isinstance(result, torch.nn.Module) else None
    return result
