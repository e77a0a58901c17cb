"""Chains of modules called at once: a served layer computes what follows it where its op does; all else runs as it is."""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch

from haotuner.torch.layer import PackedLinear


def run_chain(modules: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
    """The result of the last module: the first takes the arguments, each other the result of the one before.

    Whether a layer's op computes what follows is looked up at every call, from what the modules are at that moment.
    """
    place, alone = 0, torch.nn.modules.module._has_any_global_hook()
    while place < len(modules):
        module = modules[place]
        count = 0 if alone or not isinstance(module, PackedLinear) else module.followers(modules, place)
        result = module.with_followers(*args, **kwargs) if count else module(*args, **kwargs)
        args, kwargs, place = (result,), {}, place + 1 + count
    return args[0]


def sequential_forward(self: Any, input: Any) -> Any:
    """The forward of a ``Sequential`` as a chain; who indexes or iterates it meets its modules as they are."""
    return run_chain(list(self), input)


class ChainClass(type):
    """Class of a module whose methods call chains at once; pickled as the class that it was made from."""

    _haotuner_source: type


def _itself(kind: type) -> type:
    return kind


def _reduced(made: Any) -> Any:
    return _itself, (made._haotuner_source,)


copyreg.pickle(ChainClass, _reduced)


def class_with(source: type, methods: Mapping[str, FunctionType | Callable[..., Any]]) -> type:
    """A class like ``source`` with some methods replaced."""
    words = ("__module__", "__qualname__", "__doc__")
    facts = {word: getattr(source, word) for word in words} | {"_haotuner_source": source}
    return ChainClass(source.__name__, (source,), {**facts, **methods})


def class_of(module: torch.nn.Module) -> type:
    """The class that a module was written as, whether or not its chains are called at once."""
    kind = type(module)
    return kind._haotuner_source if isinstance(kind, ChainClass) else kind
