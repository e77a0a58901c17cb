"""Layers and parameters that modules of a model hold past torch's registers: in lists, functions, objects of their own.

A swap puts a served layer where torch has registered the layer. What holds the layer in another way would go on with the
former one, whose weight no later load, cast or hook reaches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

_OWN = set(vars(torch.nn.Module()))  # torch's registers and hooks
_DEEPEST, _LARGEST = 4, 10_000  # containers inside each other; elements of one


def outside_registers(model: torch.nn.Module) -> Mapping[int, str]:
    """Name of an attribute that holds a module or parameter past torch's registers, by the id of what it holds."""
    result: dict[int, str] = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name in _OWN:
                continue
            label = f"{path}.{name}" if path else name
            for item in _reached(value, set(), 0):
                if item is not module:  # as a former forward of its own does
                    result.setdefault(id(item), label)
    return result


def _reached(value: Any, seen: set[int], depth: int) -> Iterator[Any]:
    """Modules and parameters that a value holds, itself one of them; those inside a module are the module's."""
    if isinstance(value, (torch.nn.Module, torch.nn.Parameter)):
        yield value
    elif id(value) not in seen and depth < _DEEPEST:
        seen.add(id(value))
        for part in _parts(value):
            yield from _reached(part, seen, depth + 1)


def _parts(value: Any) -> list[Any]:
    if isinstance(value, (dict, list, tuple, set, frozenset)):
        many = len(value) > _LARGEST
        return [] if many else list(value.values()) if isinstance(value, dict) else list(value)
    if isinstance(value, MethodType):
        return [value.__self__]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
        return [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if isinstance(value, (type, ModuleType, BuiltinFunctionType, torch.Tensor)):
        return []
    attributes = getattr(value, "__dict__", None)
    return [attributes] if isinstance(attributes, dict) else []
