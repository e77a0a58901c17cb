"""Classes that ``pack.op(name)`` gives, by kind of operator. A new class is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from haotuner.ops.convolution import CONVOLUTIONS
from haotuner.runtime.convolution import ConvOp
from haotuner.runtime.dense import DenseOp
from haotuner.runtime.device_convolution import DeviceConvOp
from haotuner.runtime.device_linear import DeviceDenseOp, GroupedOp
from haotuner.runtime.device_operator import DeviceOperator, DeviceProductOp
from haotuner.runtime.operator import Operator, ProductOp

FRONTS: dict[str, Callable[..., Any]] = {
    "dense": DenseOp,
    "batch_matmul": ProductOp,
    **{kind.name: ConvOp for kind in CONVOLUTIONS},
}
PLACED: dict[str, Callable[..., Any]] = {  # of packs that were opened for a device
    "dense": DeviceDenseOp,
    "grouped": GroupedOp,
    "batch_matmul": DeviceProductOp,
    **{kind.name: DeviceConvOp for kind in CONVOLUTIONS},
}


def handle_for(kind: str, *, placed: bool = False) -> Callable[..., Any]:
    """The class for ops of a kind, made with (pack, entry); ``Operator`` where the kind has none of its own."""
    return PLACED.get(kind, DeviceOperator) if placed else FRONTS.get(kind, Operator)
