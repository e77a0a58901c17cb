"""The norm and the activation that follow a layer, as a ``Sequential`` or a method's source shows them; none is run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch

from haotuner.torch.activations import step_of
from haotuner.torch.chain_calls import class_of, class_with, run_chain, sequential_forward, why_no_subclass
from haotuner.torch.convolution import is_layer
from haotuner.torch.folding import is_norm
from haotuner.torch.rewriting import Path, Rewritten, rewritten

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
        self._made: dict[tuple[type, tuple[Any, ...]], type] = {}

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
        if key not in self._made:
            self._made[key] = class_with(kind, methods)
        return self._made[key]


def _names_of(caller: torch.nn.Module) -> tuple[frozenset[str], frozenset[str]]:
    """Names of children that are or have a layer, and of those that are or have what may follow one."""
    children = {key: list(child.modules()) for key, child in caller._modules.items() if child is not None}
    layers = frozenset(key for key, inside in children.items() if any(map(is_layer, inside)))
    return layers, frozenset(key for key, inside in children.items() if any(is_norm(one) or step_of(one) for one in inside))


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
