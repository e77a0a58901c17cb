"""Epilogues on devices: steps of ``haotuner/ops/epilogue.py`` in any order, while a tile's sums are in registers.

They are arguments of a launch (``ht_cuda_args.h``), four bits each, the first one lowest. A kernel is built in one of three
ways. A plain one adds a bias and a residual and writes its own type; one whose name ends in ``ep`` and these bits computes
those steps; ``ep1`` takes any steps, for results of another type alone. Formulas become device functions here, so that no
step is said twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from haotuner.microkernels.cuda.generated_text import FLOATS, INFIX, SHORT
from haotuner.ops.dtypes import DTYPES
from haotuner.ops.epilogue import STEPS
from haotuner.ops.formula import Apply, Formula, Load, Number
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op

STEP_BITS = 4
STEPPED = "ep"  # the last parameter of kernels that are built for steps: which
ANY_STEPS = 1  # as bits a bias alone, which a plain kernel adds
CHANNELS = ("bias", "scale", "low", "high", "slope")  # places of what a launch reads with one value a channel
# Element types of y by their number in ht_cuda_args.h, where it is not the kernel's own, which is 0.
Y_TYPES = ("", "fp32", "fp16", "bf16", "int32", "uint8", "int8")
FLOATS_WRITE = Y_TYPES[1:4]  # kernels of floats; those of bytes all of them
# Comparisons keep the NaN of a value.
CALLS: Mapping[str, str] = {
    **FLOATS,
    "max": "({0} < {1} ? {1} : {0})",
    "min": "({0} > {1} ? {1} : {0})",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """Epilogue behind the sums of an op: steps as a launch is told them, and the type of what is written.

    ``steps`` is 0 where all that follows is a bias and a residual that are added, as every kernel does anyhow.
    """

    steps: int
    residual: bool
    y_type: int


def fused(op: Op) -> Fused | None:
    """The epilogue of an op as the kernels' arguments; None where they do not write its type or know one of its steps."""
    out = op.dtype_of(op.meaning.output)
    if out not in (Y_TYPES if op.sums == "int32" else FLOATS_WRITE) or not all(map(has_bits, op.epilogue)):
        return None
    description = 0 if set(op.epilogue) <= {"bias", "residual"} else coded(op.epilogue)
    y_type = 0 if out == own_type(op.dtype) else Y_TYPES.index(out)
    return Fused(steps=description, residual="residual" in op.epilogue, y_type=y_type)


def has_bits(step: str) -> bool:
    """True if the number of a step fits the bits that a launch has for it."""
    return STEPS[step].number < 1 << STEP_BITS


def own_type(dtype: str) -> str:
    """Type that kernels of a type write unless a launch is told another: sums of bytes as they are."""
    return DTYPES[dtype].of("output")


def after_of(op: Op) -> dict[str, int]:
    """Arguments of a launch for an op's epilogue."""
    result = fused(op)
    return {} if result is None else {"after": result.steps, "y_type": result.y_type}


def steps_of(op: Op, *, phased: bool = False) -> int:
    """The steps that the tiles of an op are built for; 0: plain. ``phased``: tiles that read windows."""
    if op.kind.startswith("conv_transpose") and not phased:
        # Its products are in fp32 or int32; the launch that gathers them has the steps.
        return ANY_STEPS if op.dtype not in ("fp32", "int8") else 0
    result = fused(op)
    of_bytes = op.sums == "int32" and bool(op.epilogue)  # without any, sums of bytes stay as they are
    if result is None or not (result.steps or result.y_type or of_bytes):
        return 0
    return result.steps or ANY_STEPS


def stepped(kernel: MicroKernel, steps: int = ANY_STEPS) -> MicroKernel:
    """Copy of a kernel, built for steps as ``steps_of`` says them, whatever it was built for."""
    if built_for(kernel) == steps:
        return kernel  # nearly always: a selection asks for tens of thousands
    plain = tuple(param for param in kernel.params if param[0] != STEPPED)
    return MicroKernel(kernel.family, (*plain, (STEPPED, steps)) if steps else plain)


def built_for(kernel: MicroKernel) -> int:
    """The steps that a kernel is built for, as ``steps_of`` says them."""
    name, value = kernel.params[-1]
    return value if name == STEPPED else 0


def initializer(op: Op) -> str:
    """Epilogue of an op as a ``ht_cuda_after`` of C; ValueError where there is none."""
    result = fused(op)
    if result is None:
        raise ValueError(f"{op.name}: devices write results of {', '.join(FLOATS_WRITE)} alone, and know steps 1 to 15")
    return f"{{{result.steps:#x}ull, {result.y_type}, {int(bool(op.epilogue))}, {int(result.residual)}}}"


def coded(steps: Sequence[str]) -> int:
    """Steps as ``ht_cuda_args.after``."""
    return sum(STEPS[step].number << STEP_BITS * index for index, step in enumerate(steps))


def decoded(steps: int) -> tuple[str, ...]:
    """The steps that ``coded`` made bits of."""
    names = {step.number: name for name, step in STEPS.items()}
    places = range(0, steps.bit_length(), STEP_BITS)
    return tuple(names[steps >> position & (1 << STEP_BITS) - 1] for position in places)


def steps_text() -> str:
    """Device functions of the steps without operands: ``ht_activate`` does one by its number."""
    lines = ["// ---- steps of an epilogue that read nothing, from their formulas"]
    alone = {name: step for name, step in STEPS.items() if not step.operands and has_bits(name)}
    for kind, calls in (("", CALLS), ("_short", {**CALLS, **SHORT})):  # short: what is rounded to 16 bits at once
        lines += [
            f"HT_DEVICE float ht_step_{name}{kind}(float value) {{ return {_formula_text(step.formula, calls)}; }}"
            for name, step in alone.items()
        ]
        lines += ["template <int N>", f"HT_DEVICE void ht_activate{kind}(int step, float* v) {{"]
        for name, step in alone.items():
            lines += [
                f"    if (step == {step.number}) {{",
                "#pragma unroll",
                f"        for (int i = 0; i < N; i++) v[i] = ht_step_{name}{kind}(v[i]);",
                "    }",
            ]
        lines.append("}")
    return "\n".join(lines)


def _formula_text(formula: Formula, calls: Mapping[str, str]) -> str:
    """A formula of one element as an expression of C."""
    if isinstance(formula, Load):
        return formula.operand
    if isinstance(formula, Number):
        return f"{float(formula.value)!r}f"
    if not isinstance(formula, Apply):
        raise ValueError(f"{formula} is no function of one element")
    inputs = [_formula_text(argument, calls) for argument in formula.arguments]
    if formula.function in INFIX:
        return f"({inputs[0]} {INFIX[formula.function]} {inputs[1]})"
    return calls[formula.function].format(*inputs)
