"""What ``pack.op(name)`` gives, by kind of operator. A new kind of front is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from haotuner.ops.convolution import CONVOLUTIONS
from haotuner.runtime.convolution import ConvOp
from haotuner.runtime.dense import DenseOp
from haotuner.runtime.device_convolution import PlacedConvOp
from haotuner.runtime.device_group import PlacedGroup
from haotuner.runtime.device_linear import PlacedOp
from haotuner.runtime.device_operator import PlacedOperator
from haotuner.runtime.device_product import PlacedProductOp
from haotuner.runtime.grouped import GroupedOp
from haotuner.runtime.multi_output import Several
from haotuner.runtime.operator import Operator
from haotuner.runtime.products import ProductOp

FRONTS: dict[str, Callable[..., Any]] = {
    "dense": DenseOp,
    "batch_matmul": ProductOp,
    **{kind.name: ConvOp for kind in CONVOLUTIONS},
}
PLACED: dict[str, Callable[..., Any]] = {  # of packs that were opened for a device
    "dense": PlacedOp,
    "grouped": GroupedOp,
    "batch_matmul": PlacedProductOp,
    **{kind.name: PlacedConvOp for kind in CONVOLUTIONS},
}


def front_of(kind: str, *, placed: bool = False, written: int = 1) -> Callable[..., Any]:
    """The class for ops of a kind, made with (pack, entry); ``Operator`` where the kind has none of its own.

    ``written``: tensors that a call writes, of a group's op perhaps several.
    """
    if written > 1:
        return PlacedGroup if placed else Several
    return PLACED.get(kind, PlacedOperator) if placed else FRONTS.get(kind, Operator)
