"""A module through ``torch.export`` to a graph, and to a file that `haotuner tune` takes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from haotuner.frontends.torch_export.aten_recurrent import lengths_kept
from haotuner.frontends.torch_export.exported_program import SUFFIX, graph_of_program, symbols_of
from haotuner.frontends.torch_export.pt2_file import NAMES
from haotuner.graph.graph import Graph


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
        path = Path(out)
        path = path if path.suffix == SUFFIX else path.with_name(path.name + SUFFIX)
        lines = "\n".join(f"{symbol} {name}" for symbol, name in names.items())
        program.example_inputs = None  # the caller's data, and pickles of classes that readers have not
        torch.export.save(program, str(path), extra_files={NAMES: lines})
    return graph


@contextmanager
def _plain_outputs(module: torch.nn.Module) -> Iterator[None]:
    """The module gives its tensors alone: a library's own classes are in a file only for who has imported that library."""
    hook = module.register_forward_hook(lambda _, inputs, result: None if torch.is_tensor(result) else _tensors(result))
    try:
        yield
    finally:
        hook.remove()


def _tensors(output: Any) -> tuple[Any, ...]:
    return tuple(leaf for leaf in torch.utils._pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor))


def _without_names(shapes: Any) -> Any:
    """Dynamic shapes as torch takes them: a dimension that is only named is any."""
    if isinstance(shapes, str):
        return torch.export.Dim.DYNAMIC
    if isinstance(shapes, Mapping):
        return {key: _without_names(item) for key, item in shapes.items()}
    return type(shapes)(map(_without_names, shapes)) if isinstance(shapes, (list, tuple)) else shapes


def _by_tensor(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], shapes: Any) -> list[Any]:
    """Dynamic shape asked of each tensor among the inputs, in their order; None where nothing was."""
    signature = inspect.signature(module.forward)
    every = signature.bind(*args, **kwargs).arguments
    by_name = dict(shapes if isinstance(shapes, Mapping) else zip(every, shapes or (), strict=False))
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            by_name.update(by_name.pop(name, None) or {})
    inputs = {**signature.bind_partial(*args).arguments, **kwargs}  # torch has tensors in this order, not in the signature's
    return [leaf for name, value in inputs.items() for leaf in _leaves(value, by_name.get(name))]


def _leaves(value: Any, shapes: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield shapes
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, (shapes or {}).get(key))
    elif isinstance(value, (list, tuple)):
        for index, entry in enumerate(value):
            yield from _leaves(entry, shapes[index] if shapes else None)


def _names(program: Any, shapes: Sequence[Any]) -> dict[str, str]:
    """The name that the caller gave to each symbol that is a whole dimension of an input."""
    result: dict[str, str] = {}
    for sizes, axes in zip(symbols_of(program).values(), shapes, strict=False):
        named: Mapping[int, Any] = axes if isinstance(axes, Mapping) else dict(enumerate(axes or ()))
        for axis, item in named.items():
            size = sizes[axis]
            label = item if isinstance(item, str) else getattr(item, "__name__", "")
            if label and hasattr(size, "node") and getattr(size.node.expr, "is_Symbol", False):
                result.setdefault(str(size.node.expr), label)
    return result
