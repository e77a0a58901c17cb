"""Chains of modules called at once: a served layer computes what follows it where its op does; all else runs as it is."""

from __future__ import annotations

import copyreg
from abc import ABCMeta
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, Generic

import torch

from haotuner.torch.layer import PackedLinear


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
