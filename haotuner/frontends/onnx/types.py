"""Element types of ONNX by number, as graphs name them."""

from __future__ import annotations

from haotuner.errors import UsageError
from haotuner.frontends.onnx.narrow_types import NARROW

# The numbers of TensorProto.DataType (onnx.proto).
DTYPES = {
    1: "fp32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "fp16", 11: "fp64",
    12: "uint32", 13: "uint64", 16: "bf16",
}  # fmt: skip
OTHERS = {8: "text", 14: "complex64", 15: "complex128", 24: "float8_e8m0fnu"} | {
    at: item.name for at, item in NARROW.items()
}


def dtype_of_onnx(number: int, what: str) -> str:
    """The element type. UsageError for text, complex numbers and numbers of less than a byte."""
    if number not in DTYPES:
        raise UsageError(
            f"{what}: elements of type {OTHERS.get(number, number)} are not supported; known: {', '.join(DTYPES.values())}"
        )
    return DTYPES[number]
