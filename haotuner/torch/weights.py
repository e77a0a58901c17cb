"""``PackedWeight``: weight and bias of a served layer as tensors, unpacked when read, served when written."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Collection
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch

from haotuner.errors import UsageError

if TYPE_CHECKING:
    from haotuner.torch.layer import PackedLinear


class NamedTensors(dict[str, Any]):
    """Parameters by name, in torch's order: ``weight`` and ``bias`` as ``PackedWeight`` or tied, then the layer's others.

    Loops over ``parameters()`` read and write what is served. Parametrizations and pruning look a weight up here and put
    another in its place. To set one is to serve it. While torch.export records, there is one parameter without elements
    instead, for who asks for a type or device: a recorded program has the packed weight.
    UsageError: one is deleted, for it is packed and cannot be computed anew at each call.
    """

    def __init__(self, layer: torch.nn.Module, op: str, names: Collection[str]) -> None:
        super().__init__()
        self._layer, self._op, self._names = weakref.ref(layer), op, names
        self.typed: dict[str, Any] = {}  # what a graph that is being compiled reads types and shapes of

    def _named(self) -> dict[str, Any]:
        other_tensors = {name: value for name, value in dict.items(self) if name != PRESENCE}
        if torch.compiler.is_dynamo_compiling():
            return {**self.typed, **other_tensors}
        if _is_recorder(sys._getframe(2)):
            return {PRESENCE: self[PRESENCE], **other_tensors}
        layer = self._layer()
        return {**{name: getattr(layer, name) for name in self._names}, **other_tensors}

    def items(self) -> Any:
        """Names and tensors."""
        return self._named().items()

    def values(self) -> Any:
        """Tensors."""
        return self._named().values()

    def keys(self) -> Any:
        """Names."""
        return self._named().keys()

    def __iter__(self) -> Any:
        return iter(self._named())

    def __len__(self) -> int:
        return len(self._named())

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._names

    def __missing__(self, name: str) -> Any:
        if name in self._names:
            return getattr(self._layer(), name)
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The tensor of a name."""
        try:
            return self[name]
        except KeyError:
            return default

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self._names:
            setattr(self._layer(), name, value)
        else:
            super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        if name in self._names:
            raise no_other_weight(self._op, name)
        super().__delitem__(name)

    def __deepcopy__(self, memo: Any) -> dict[str, Any]:
        return {name: deepcopy(value, memo) for name, value in dict.items(self)}

    def __reduce__(self) -> Any:
        return dict, (dict(dict.items(self)),)

    def moved(self, layer: torch.nn.Module, memo: dict[int, Any]) -> NamedTensors:
        """Copies of the parameters, as those of a copy of the layer."""
        other = NamedTensors(layer, self._op, self._names)
        for name, value in deepcopy(self, memo).items():
            dict.__setitem__(other, name, value)
        return other


PRESENCE = "presence"
_BETWEEN = {"torch.nn.modules.module", "torch.nn.utils.stateless", "torch.nn.utils._named_member_accessor", "contextlib"}
_RECORDERS = ("torch.export.", "torch._export.", "torch._functorch.aot_autograd", "torch._functorch._aot_autograd.")


def _is_recorder(frame: Any) -> bool:
    """True where torch.export lists the tensors of its program. It sets no flag there: its frame is behind nn.Module's."""
    while frame is not None and frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
    return frame is not None and f"{frame.f_globals.get('__name__')}.".startswith(_RECORDERS)


def no_other_weight(layer: str, name: str) -> UsageError:
    """Error where a weight is to be deleted, to be computed anew at each call, or to lie in other memory."""
    return UsageError(
        f"{layer}: {name} of a served layer is packed; it cannot be parametrized, pruned, deleted or set_ to other memory. "
        "Do that before the swap, which leaves such a layer, or make it permanent (remove_parametrizations, prune.remove) "
        "and swap then; copy_ and assignments change a served weight"
    )


_F, _T = torch.nn.functional, torch.Tensor
# What only reads its operands and is called often; a call of anything else is looked at operator by operator.
_READERS = {
    _F.linear, _F.conv1d, _F.conv2d, _F.conv_transpose1d, _F.conv_transpose2d, _F.embedding, torch.matmul, torch.addmm,
    torch.mm, _T.matmul, _T.__matmul__, _T.__rmatmul__, _T.mm, _T.clone, _T.tolist, _T.item, _T.__repr__, _T.data_ptr,
    _T.untyped_storage,
}  # fmt: skip
_COPIES = {_T.numpy, _T.__array__, _T.__dlpack__, _T.__deepcopy__, _T.__reduce_ex__}  # numbers that leave torch are apart
_ARRAYS = {_T.numpy, _T.__array__}
_SET_DATA = _T.data.__set__
_SET_GRAD = _T.grad.__set__
_GRADED = {_T.requires_grad_, _T.requires_grad.__set__}


class PackedWeight(torch.Tensor):  # type: ignore[misc]
    """The ``weight`` or ``bias`` of a served layer, or a view of it, of the layer's type on the CPU.

    Type and shape cost nothing. The first read of its numbers unpacks them, and the layer keeps them beside. What is written
    in place, also through ``.data`` and views, is packed anew and served from the next call on. Once the layer was assigned
    another, this one is a plain tensor with the numbers that it had.
    """

    _owner: Callable[[], PackedLinear | None]
    _name: str
    _view: torch.Tensor | None
    _served: bool

    @staticmethod
    def of(
        layer: PackedLinear, name: str, shape: Any, view: torch.Tensor | None = None, *, types: bool = False
    ) -> PackedWeight:
        """``name`` of a layer, or a ``view`` of its numbers. ``types``: only type and shape, and it keeps no layer alive."""
        with torch.inference_mode(False):
            like = {"dtype": layer.dtype, "device": "cpu", "requires_grad": False}
            if view is not None:
                like |= {"dtype": view.dtype, "strides": view.stride(), "storage_offset": view.storage_offset()}
            handle = torch.Tensor._make_wrapper_subclass(PackedWeight, shape, **like)
        handle._name, handle._view, handle._served = name, view, True
        handle._owner = weakref.ref(layer) if types else lambda: layer
        if not types:
            layer.handed_out(handle)
        return handle  # type: ignore[no-any-return]

    @property
    def _layer(self) -> PackedLinear:
        layer = self._owner()
        if layer is None:
            raise ReferenceError(f"{self._name} of a served layer that is gone")
        return layer

    def numbers(self) -> torch.Tensor:
        """The plain tensor that it stands for."""
        return self._layer.numbers(self._name) if self._view is None else self._view

    def shared(self) -> torch.Tensor:
        """The parameter that other served layers share with its own; itself where it is a view, or no longer served."""
        return self._layer.parameter(self._name) if self.shows(self._name, self._layer.dtype) else self

    def shows(self, name: str, dtype: torch.dtype) -> bool:
        """True where it is the layer's whole tensor of that name, of that type, and not retired."""
        return self._served and self._view is None and self._name == name and self.dtype is dtype

    def name_of(self) -> str:
        """Name of the layer's tensor that it is, or is a view of."""
        return self._name

    def retire(self, numbers: torch.Tensor) -> None:
        """Stand for these ``numbers`` from now on; a view stays what it is. Writes are no longer served."""
        self._view, self._served = numbers if self._view is None else self._view, False

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        memo[id(self)] = copy = self.numbers().clone()
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.numbers().clone().__reduce_ex__(protocol)

    @classmethod
    @torch._disable_dynamo  # type: ignore[untyped-decorator]
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (
            func in _GRADED
            and isinstance(args[0], PackedWeight)
            and (args[1] if len(args) > 1 else kwargs.get("requires_grad", True))
        ):
            raise UsageError(
                f"{args[0]._layer.extra_repr()}: {args[0]._name} of a served layer takes no gradient; a pack only infers: "
                "train the model before the swap, or leave its served layers out (requires_grad is False there); "
                "its clone() takes one"
            )
        if func == _SET_GRAD and isinstance(args[0], PackedWeight) and args[0]._served and args[0]._view is None:
            graded = args[0]._layer.graded
            graded.pop(args[0]._name, None) if args[1] is None else graded.update({args[0]._name: args[0]})
        if func == _SET_DATA and isinstance(args[0], PackedWeight):
            return args[0]._layer.serve_other(args[0]._name, _plain(args[1]))
        if func in _READERS and "out" not in kwargs:
            return func(*map(_plain, args), **{key: _plain(value) for key, value in kwargs.items()})
        if func in _COPIES:
            copy = func(args[0].numbers().detach().clone(), *args[1:], **kwargs)
            if func in _ARRAYS:  # a write there would be lost: torch's own arrays share memory with their tensor
                copy.setflags(write=False)
            return copy
        return torch._C._disabled_torch_function_impl(func, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, written = kwargs or {}, list[PackedWeight]()
        views: PackedWeight | None = None
        if func.overloadpacket is torch.ops.aten.set_ and isinstance(args[0], PackedWeight) and args[0]._served:
            raise no_other_weight(args[0]._layer.extra_repr(), args[0]._name)
        for index, argument in enumerate(func._schema.arguments):
            inputs = args[index] if index < len(args) else kwargs.get(argument.name)
            parts = inputs if isinstance(inputs, (list, tuple)) else (inputs,)
            for part in parts:
                if isinstance(part, PackedWeight) and argument.alias_info is not None:
                    if argument.alias_info.is_write:
                        written.append(part)
                    else:
                        views = part
        plain, named = torch.utils._pytree.tree_map(_plain, (args, kwargs))
        result = func(*plain, **named)
        for item in written:
            if item._served:
                item._layer.written_all(item._name)
        if written:
            return args[0] if isinstance(args[0], PackedWeight) and args[0] is written[0] else result
        if views is None:
            return result
        wrap = lambda item: PackedWeight.of(views._layer, views._name, item.shape, item) if isinstance(item, _T) else item  # noqa: E731
        return torch.utils._pytree.tree_map(wrap, result)


def _plain(value: Any) -> Any:
    return value.numbers() if isinstance(value, PackedWeight) else value
