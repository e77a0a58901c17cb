"""The norm and the activation that follow a layer alone, as a ``Sequential`` or the forward shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from haotuner.torch.activations import step_of
from haotuner.torch.convolution import KINDS

NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d)


@dataclass(frozen=True, slots=True)
class Place:
    """A module by where it hangs."""

    parent: torch.nn.Module
    key: str

    @property
    def module(self) -> Any:
        """The module itself."""
        return self.parent._modules[self.key]


@dataclass(frozen=True, slots=True)
class Chain:
    """What takes a layer's result and is the only one to: a norm, and an activation of what that, or the layer, gives."""

    norm: Place | None = None
    activation: Place | None = None

    @property
    def step(self) -> str:
        """The activation as an epilogue step; empty without one."""
        return "" if self.activation is None else step_of(self.activation.module)


@dataclass(frozen=True, slots=True)
class Chains:
    """What follows the layers of a model, and what could not be looked at."""

    by_layer: Mapping[int, Chain] = field(default_factory=dict)  # by the id of each linear and convolution
    unread: Mapping[str, str] = field(default_factory=dict)  # name of a module whose forward cannot be traced -> why

    def after(self, layer: torch.nn.Module) -> Chain:
        """What follows a layer; nothing where that is not known."""
        return self.by_layer.get(id(layer), Chain())


def chains(model: torch.nn.Module) -> Chains:
    """What follows each linear and convolution; layers and what follows are used once in the model.

    A forward of modules is read by ``torch.fx``, which runs it once on stand-ins; what that cannot read is named.
    """
    uses = Counter(id(one) for whole in model.modules() for one in whole._modules.values())
    found: dict[int, Chain] = {}
    unread: dict[str, str] = {}
    for name, parent in list(model.named_modules()):
        try:
            lines = _lines(parent)
        except Exception as error:  # a forward may do anything; what cannot be read has no chains
            unread[name or type(parent).__name__] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            continue
        for layer, *behind in lines:
            if _is_layer(layer.module) and uses[id(layer.module)] == 1:
                found[id(layer.module)] = _chain([one for one in behind if uses[id(one.module)] == 1])
    return Chains(found, unread)


def _is_layer(module: Any) -> bool:
    return type(module) is torch.nn.Linear or type(module) in KINDS


def _is_norm(module: Any) -> bool:
    return type(module) in NORMS and not module._forward_hooks and not module._forward_pre_hooks


def _chain(behind: list[Place]) -> Chain:
    norm = behind[0] if behind and _is_norm(behind[0].module) else None
    rest = behind[1:] if norm is not None else behind
    return Chain(norm, rest[0] if rest and step_of(rest[0].module) else None)


def _lines(parent: torch.nn.Module) -> list[list[Place]]:
    """Runs of modules, each of which takes the result of the one before and is alone in that."""
    if type(parent).forward is torch.nn.Sequential.forward:
        whole = [Place(parent, key) for key in parent._modules]
        return [whole[at : at + 3] for at in range(len(whole))]
    if type(parent).forward is torch.nn.Module.forward:  # a container: whoever holds it calls its parts
        return []
    children = [child for child in parent._modules.values() if child is not None]
    if not any(map(_is_layer, children)) or not any(_is_norm(child) or step_of(child) for child in children):
        return []
    graph = _Reader().trace(parent)
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    found = []
    for node in graph.nodes:
        line: list[Place] = []
        while node.op == "call_module" and "." not in node.target and calls[node.target] == 1 and len(line) < 3:
            line.append(Place(parent, node.target))
            if len(node.users) != 1:
                break
            (after,) = node.users
            if after.op != "call_module" or after.args != (node,) or after.kwargs:
                break
            node = after
        if line:
            found.append(line)
    return found


class _Reader(torch.fx.Tracer):  # type: ignore[misc]
    """Reads one forward; every child is called as it is."""

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        return True
