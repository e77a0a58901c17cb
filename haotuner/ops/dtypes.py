"""Element types: size, numpy's name, unit roundoff."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DType:
    """One element type. ``eps``: distance of 1.0 to the next number, 0.0 of integers; ``code``: DLPack's type code.

    ``least``: distance of 0.0 to the next number, where results come near it.

    An op of the type reads inputs of ``input``, constants of the type itself, sums in ``sums`` and writes ``output``.
    """

    name: str
    size: int  # bytes
    numpy: str
    eps: float
    code: int  # kDLInt 0, kDLUInt 1, kDLFloat 2, kDLBfloat 4
    sums: str = "fp32"
    input: str = ""  # empty: the type itself
    output: str = ""
    low: int = 0  # of integers
    high: int = 0
    least: float = 0.0

    def of(self, role: str) -> str:
        """Element type of an operand of an op of this type, by its role."""
        return {"input": self.input, "output": self.output}.get(role, "") or self.name


DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        DType(name="fp32", size=4, numpy="float32", eps=2.0**-23, code=2),
        DType(name="fp16", size=2, numpy="float16", eps=2.0**-10, least=2.0**-24, code=2),
        DType(name="bf16", size=2, numpy="bfloat16", eps=2.0**-7, code=4),  # numpy has it where ml_dtypes is installed
        # Activations without a sign times weights with one, as VNNI multiplies them; sums are exact.
        DType(
            name="int8",
            size=1,
            numpy="int8",
            eps=0.0,
            code=0,
            sums="int32",
            input="uint8",
            output="int32",
            low=-128,
            high=127,
        ),
        DType(name="uint8", size=1, numpy="uint8", eps=0.0, code=1, high=255),  # of operands, not of ops, as is the next
        DType(name="int32", size=4, numpy="int32", eps=0.0, code=0, low=-(2**31), high=2**31 - 1),
    )
}
# As numpy, torch and ONNX call the types of ops.
DTYPE_ALIASES = {"float32": "fp32", "float": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16"}
DTYPE_BYTES: dict[str, int] = {name: dtype.size for name, dtype in DTYPES.items()}
