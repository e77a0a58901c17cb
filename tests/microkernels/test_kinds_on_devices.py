"""What CPUs compute of products and convolutions, and devices refuse: every kind, type, layout, result and epilogue."""

from __future__ import annotations

from itertools import product

from haotuner.backends.index import backend_named
from haotuner.errors import NothingLegal
from haotuner.spec.op import Op

WHOLE = ("int32", "uint8", "int8")
EPILOGUES = ("", "relu", "bias", "bias+residual", "scale+bias+gelu", "residual+relu", "clamp", "bias+prelu")
TYPES = ("fp32", "fp16", "bf16", "int8", "int8,in=int8")
OUTS = ("own", "fp32", "fp16", "bf16", *WHOLE)
_IMAGES = (
    "c=64,f=64,{taps},pad=1",
    "c=64,f=48,{taps},stride=2,dilation=2,groups=4",
    "c=64,f=64,{taps},groups=64",
    "c=3,f=8,{taps}",
)
SIDES = (
    ("1d", "s=4", ("ncw", "nwc")),
    ("1d", "s=1", ("ncw",)),
    ("2d", "r=4,s=4", ("nchw", "nhwc")),
    ("2d", "r=1,s=1", ("nhwc",)),
)
SPECS = (
    *("dense:n=64,k=32", "dense:n=64,k=31", "dense:n=64,k=32,weight=kn"),
    *(f"batch_matmul:{known}layout={layout}" for known in ("", "k=32,") for layout in ("nt", "nn", "tn")),
    *(
        f"{kind}{flat}:{image.format(taps=taps)},layout={layout}"
        for kind in ("conv", "conv_transpose")
        for flat, taps, layouts in SIDES
        for image, layout in product(_IMAGES, layouts)
    ),
)


def computes(backend: str, op: Op) -> bool:
    try:
        return bool(backend_named(backend).families(op))
    except NothingLegal:
        return False


def test_devices_refuse_nothing_but_whole_numbers_of_real_types() -> None:
    """Neither a framework nor an ONNX operator makes such results without sums of bytes."""
    served = 0
    for spec, dtype, out, steps in product(SPECS, TYPES, OUTS, EPILOGUES):
        op = Op.parse(f"{spec},dtype={dtype},out={out}{f',epilogue={steps}' if steps else ''}")
        here, there = computes("cpu", op), computes("cuda", op)
        refused = dtype in ("fp32", "fp16", "bf16") and out in WHOLE
        assert there or not here or refused, op.name
        assert not (there and refused), op.name
        served += there
    assert served > 5000
