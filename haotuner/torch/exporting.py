"""A module through ``torch.export`` to a graph, and to a file that `haotuner tune` takes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from haotuner.graph.graph import Graph
from haotuner.importing.aten_lengths import lengths_kept
from haotuner.importing.exported import SUFFIX, graph_of_program, symbols_of
from haotuner.importing.exported_file import NAMES


def export(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    dynamic_shapes: Any = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
) -> Graph:
    """The graph of a module in evaluation mode; dimensions have the names that are given.

    Args:
        module: the model.
        args: example inputs.
        dynamic_shapes: as ``torch.export.export`` takes it: for each input the dimensions by axis, each a
            ``torch.export.Dim`` or, as ``torch.onnx.export`` takes it, a name. With ``kwargs``: by argument.
        kwargs: example inputs that the module takes by name, as models of transformers do.
        out: a file to write, ``NAME.pt2``: `haotuner tune NAME.pt2 --shapes "batch=1..8"` tunes it.

    Raises:
        UsageError: operators without a rule; all of them are listed.
    """
    named = dict(kwargs or {})
    with lengths_kept(torch), _plain_outputs(module):
        program = torch.export.export(module.eval(), args, named or None, dynamic_shapes=_without_names(dynamic_shapes))
    if isinstance(dynamic_shapes, torch.export.ShapesCollection):
        dynamic_shapes = dynamic_shapes.dynamic_shapes(module, args, named or None)
    names = _names(program, _by_tensor(module, args, named, dynamic_shapes))
    graph = graph_of_program(program, names)
    if out is not None:
        place = Path(out)
        place = place if place.suffix == SUFFIX else place.with_name(place.name + SUFFIX)
        lines = "\n".join(f"{symbol} {name}" for symbol, name in names.items())
        program.example_inputs = None  # the caller's data, and pickles of classes that readers have not
        torch.export.save(program, str(place), extra_files={NAMES: lines})
    return graph


@contextmanager
def _plain_outputs(module: torch.nn.Module) -> Iterator[None]:
    """The module gives its tensors alone: a library's own classes are in a file only for who has imported that library."""
    hook = module.register_forward_hook(lambda _, given, found: None if torch.is_tensor(found) else _tensors(found))
    try:
        yield
    finally:
        hook.remove()


def _tensors(found: Any) -> tuple[Any, ...]:
    return tuple(one for one in torch.utils._pytree.tree_leaves(found) if isinstance(one, torch.Tensor))


def _without_names(asked: Any) -> Any:
    """What was asked, as torch takes it: a dimension that is only named is any."""
    if isinstance(asked, str):
        return torch.export.Dim.DYNAMIC
    if isinstance(asked, Mapping):
        return {key: _without_names(one) for key, one in asked.items()}
    return type(asked)(map(_without_names, asked)) if isinstance(asked, (list, tuple)) else asked


def _by_tensor(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], asked: Any) -> list[Any]:
    """What was asked of each tensor among the inputs, in their order; None where nothing was."""
    signature = inspect.signature(module.forward)
    every = signature.bind(*args, **kwargs).arguments
    by_name = dict(asked if isinstance(asked, Mapping) else zip(every, asked or (), strict=False))
    for name, one in signature.parameters.items():
        if one.kind is inspect.Parameter.VAR_KEYWORD:
            by_name.update(by_name.pop(name, None) or {})
    given = {**signature.bind_partial(*args).arguments, **kwargs}  # torch has tensors in this order, not in the signature's
    return [one for name, value in given.items() for one in _leaves(value, by_name.get(name))]


def _leaves(value: Any, asked: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield asked
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _leaves(one, (asked or {}).get(key))
    elif isinstance(value, (list, tuple)):
        for place, one in enumerate(value):
            yield from _leaves(one, asked[place] if asked else None)


def _names(program: Any, asked: Sequence[Any]) -> dict[str, str]:
    """The name that the caller gave to each symbol that is a whole dimension of an input."""
    found: dict[str, str] = {}
    for sizes, axes in zip(symbols_of(program).values(), asked, strict=False):
        named: Mapping[int, Any] = axes if isinstance(axes, Mapping) else dict(enumerate(axes or ()))
        for axis, one in named.items():
            size = sizes[axis]
            label = one if isinstance(one, str) else getattr(one, "__name__", "")
            if label and hasattr(size, "node") and getattr(size.node.expr, "is_Symbol", False):
                found.setdefault(str(size.node.expr), label)
    return found
