"""Element types: size, numpy's name, unit roundoff."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DType:
    """One element type. ``eps``: distance of 1.0 to the next number, 0.0 of integers; ``code``: DLPack's type code."""

    name: str
    size: int  # bytes
    numpy: str
    eps: float
    code: int  # kDLInt 0, kDLUInt 1, kDLFloat 2, kDLBfloat 4


DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        DType(name="fp32", size=4, numpy="float32", eps=2.0**-23, code=2),
        DType(name="fp16", size=2, numpy="float16", eps=2.0**-10, code=2),
        DType(name="bf16", size=2, numpy="bfloat16", eps=2.0**-7, code=4),  # numpy has it where ml_dtypes is installed
        DType(name="int32", size=4, numpy="int32", eps=0.0, code=0),  # of operands that count, not of ops
    )
}
DTYPE_BYTES: dict[str, int] = {name: dtype.size for name, dtype in DTYPES.items()}
