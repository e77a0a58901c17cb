"""A pack's ops under ``torch.ops.haotuner``, and packs that compute on torch's threads.

Ops are made with ``Library.define`` and ``impl``: ``torch.library.custom_op`` costs seven times more a call.
"""

from __future__ import annotations

import ctypes
from typing import Any
from weakref import WeakValueDictionary

import torch

from haotuner.errors import UsageError
from haotuner.ops.convolution import is_convolution
from haotuner.ops.dtypes import DTYPES
from haotuner.pack.op import LAYERS
from haotuner.runtime.arrays import numpy_type
from haotuner.runtime.device_operator import DeviceProductOp
from haotuner.runtime.host_memory import Arena
from haotuner.runtime.linear import Linear
from haotuner.runtime.operator import Operator, ProductOp
from haotuner.runtime.pack import Pack
from haotuner.runtime.weights import pack_weight
from haotuner.torch.device_conv import DeviceConvCall
from haotuner.torch.device_layer import DeviceCall, define
from haotuner.torch.device_ops import FusedCall, GroupedCall, define_grouped
from haotuner.torch.layer_ops import define_layer
from haotuner.torch.operators import define_operator, define_product


class Registered:
    """Ops of one pack under ``torch.ops.haotuner``, until ``close``. The pack stays loaded as long as its ops are.

    ``namespace``: another one than ``haotuner``, for packs that hold ops of the same names side by side.
    """

    def __init__(self, pack: Pack, namespace: str = "haotuner") -> None:
        if pack.gpu is None:
            share_threads(pack)
        self.pack = self._pack = pack
        self._packing: Any = _Packing(pack)
        self.folded: WeakValueDictionary[int, Any] = WeakValueDictionary()  # layers by the address of their packed weight
        self._library = torch.library.Library(namespace, "FRAGMENT")
        self.namespace: Any = getattr(torch.ops, namespace)
        self.names = pack.ops
        registered = [name for name in pack.ops if hasattr(self.namespace, name)]
        if registered:
            raise UsageError(f"torch.ops.{namespace} has {', '.join(registered)} already; close what registered them first")
        layers = [name for name in pack.ops if pack.gpu is not None and pack.op_entry(name).kind in LAYERS]
        self._device_calls = {name: _device_call(pack, name) for name in layers}
        on_device = [] if pack.gpu is None else [op for op in pack.ops if is_convolution(pack.op_entry(op).kind)]
        self._convolved = {name: DeviceConvCall(pack, name) for name in on_device}
        for name in pack.ops:
            placed = self._device_calls.get(name)
            if isinstance(placed, GroupedCall):
                define_grouped(self._library, placed)
            elif placed is not None:
                define(self._library, placed)
            elif name in self._convolved:
                define(self._library, self._convolved[name])
            elif isinstance(op := pack.op(name), ProductOp | DeviceProductOp):
                define_product(self._library, op)
            elif isinstance(op, Operator):
                define_operator(self._library, op)
            else:
                define_layer(self._library, pack, op.entry, self.folded)

    def pack_weight(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """The weight that ``torch.ops.haotuner.<name>`` takes, from one as ``nn.Linear`` stores it.

        Packed for a CPU; on a device it is the weight itself, which was checked.
        """
        call = self._device_calls.get(name) or self._convolved.get(name)
        if call is not None:
            if not call.entry.extra:  # else a call checks it, with what the epilogue reads
                call.bind(weight.detach())
            return weight.detach()
        packed, _ = pack_weight(self._packing, self._pack.op_entry(name), weight)
        return torch.from_numpy(packed)

    def placed_call(self, name: str) -> DeviceCall:
        """The calls of an op of a pack on a device; KeyError for a pack on the CPU."""
        return self._device_calls[name]

    def close(self) -> None:
        """Take the ops out of torch; twice is harmless. Torch frees them: one kept from before must not be called."""
        self._library._destroy()
        for name in self.names:
            self.namespace.__dict__.pop(name, None)

    def __enter__(self) -> Registered:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Packing:
    """A pack's library and memory for packed weights: both outlive a hand-over, as the registered ops do."""

    def __init__(self, pack: Pack) -> None:
        self.arena, self.table_index = Arena(), pack.table_index
        self._library = pack.library()

    def library(self) -> Any:
        """The library that the registered ops call."""
        return self._library


def _device_call(pack: Pack, name: str) -> DeviceCall:
    entry = pack.op_entry(name)
    return (GroupedCall if entry.kind == "grouped" else FusedCall if entry.extra else DeviceCall)(pack, name)


def share_threads(pack: Pack, share: bool = True) -> bool:
    """Let packs compute on torch's OpenMP threads, in the whole process; False where torch has none of GNU's kind.

    ``share=False`` goes back to the packs' own pool.

    Torch's layers run between a pack's, on the same cores. Two pools there cost each other a wake-up a layer; in an encoder
    of BERT-base's size on two cores a layer norm of 37 rows took 735 us beside a pool of our own and 11 us without. Give
    packs as many threads as ``torch.get_num_threads()``: OpenMP starts its threads anew when the number changes. A forked
    child goes back to a pool of its own.
    """
    team = getattr(ctypes.CDLL(None), "GOMP_parallel", None) if share else None
    address = ctypes.cast(team, ctypes.c_void_p).value if team is not None else 0
    pack.library().function("ht_team")(address)
    return bool(address)


def register(pack: Pack) -> Registered:
    """``torch.ops.haotuner.<op>(x, packed, bias=None)`` and ``.out(…, out=y)``, which returns nothing, for every op.

    An op with an epilogue takes what that reads in the place of the bias: values of a channel ``(n,)`` in the order of its
    steps, then tensors like the result. A grouped op is ``(x, weight, offsets, bias=None)``.

    x is ``(…, k)`` of the op's dtype (uint8 for int8) on the pack's device; fakes accept symbolic sizes, so the ops go
    through ``torch.compile(fullgraph=True, dynamic=True)``. UsageError if an op of that name is registered already.
    """
    return Registered(pack)


def torch_type(name: str) -> torch.dtype:
    """Torch's type of a dtype name."""
    element_type: torch.dtype = getattr(torch, DTYPES[name].numpy)
    return element_type


def tensor_of(array: Any, kind: torch.dtype) -> torch.Tensor:
    """A tensor over an array's memory; bfloat16 may come as its bits."""
    if kind is torch.bfloat16:
        return torch.from_numpy(array.view("int16")).view(kind)
    return torch.from_numpy(array)


def array_of(tensor: torch.Tensor) -> Any:
    """Array that a whole model takes: the tensor itself; of bfloat16 on the host, which DLPack gives not to numpy, bits."""
    if tensor.dtype is not torch.bfloat16 or tensor.device.type != "cpu":
        return tensor
    return tensor.view(torch.int16).numpy().view(numpy_type("bf16"))


def packed_tensor(linear: Linear) -> torch.Tensor:
    """The packed weight of a bound linear, ``(panels, k, pw)``, or of a convolution, sharing its memory."""
    return torch.from_dlpack(linear.bound.packed)
