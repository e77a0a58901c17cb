"""Epilogues on devices: every step in orders drawn by seed, results of other types, in every family, on the emulator."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest

from haotuner.backends.cuda.backend import CudaBackend
from haotuner.backends.cuda.pack_source import pack_data
from haotuner.microkernels.cuda.fused import ANY_STEPS, coded, decoded, fused, has_bits, stepped, steps_of, steps_text
from haotuner.ops.epilogue import STEPS
from haotuner.spec.op import Op
from tests.emulator import build, run
from tests.emulator.run import Call
from tests.microkernels import cuda_examples as examples
from tests.runtime.cuda_packs import PRODUCT_FP16, packed_product

KERNELS = tuple(map(stepped, (
    examples.SIMT.kernel(bm=32, bn=64, bk=8, tm=4, tn=4),
    examples.MMA.kernel(bm=16, bn=32, bk=32, wm=1, wn=2, st=2),
    examples.WGMMA_BF16.kernel(bm=64, bn=32, st=2),
    examples.SHORT_WGMMA.kernel(bm=8, bn=64, st=3),
    examples.GEMV.kernel(bm=4, c=2, wn=2, wk=2, v=8),
    examples.grouped(examples.MMA_BF16.kernel(bm=16, bn=32, bk=32, wm=1, wn=2, st=2)),
)))  # fmt: skip
BUILT = (  # for the very steps: every step among them, stored from registers, through shared memory, turned, by strips
    (examples.MMA.kernel(bm=16, bn=64, bk=32, wm=1, wn=1, st=2), ("bias", "gelu", "residual")),
    (examples.MMA_BF16.kernel(bm=16, bn=32, bk=32, wm=1, wn=2, st=2), ("scale", "bias", "prelu", "silu")),
    (examples.WGMMA_BF16.kernel(bm=64, bn=32, st=2), ("residual", "clamp", "tanh", "scale")),
    (examples.SHORT_WGMMA.kernel(bm=8, bn=64, st=3), ("bias", "hardswish", "gelutanh")),
    (examples.SIMT.kernel(bm=32, bn=64, bk=8, tm=4, tn=4), ("sigmoid", "bias", "prelu", "relu6", "residual")),
    (examples.GEMV.kernel(bm=4, c=2, wn=2, wk=2, v=8), ("hardsigmoid", "clamp", "relu")),
    (examples.WGMMA.kernel(bm=64, bn=64, st=2), ("bias", "gelu")),  # what comes last is rounded to 16 bits at once
    (examples.MMA_BF16.kernel(bm=16, bn=64, bk=32, wm=1, wn=1, st=2), ("bias", "residual", "silu")),
    (examples.WGMMA_BF16.kernel(bm=64, bn=64, st=2), ("bias", "gelutanh")),
    (examples.MMA.kernel(bm=32, bn=64, bk=32, wm=2, wn=1, st=2), ("scale", "sigmoid")),
)
KERNELS += tuple(stepped(kernel, coded(steps)) for kernel, steps in BUILT)


def drawn(seed: int, ends: tuple[int, ...]) -> tuple[Call, ...]:
    """Between them the calls have every step; whole pieces of Y, single elements, and sums in parts."""
    dice, names = random.Random(seed), sorted(filter(has_bits, STEPS))
    dice.shuffle(names)
    cuts = (names[:5], names[5:9], names[9:], ["bias", "residual"])
    kinds = ({"n": 72}, {"n": 67, "y_gap": 3}, {"n": 72, "splits": 1 if ends else 2}, {"n": 40})
    outs = dice.sample(["", "fp32", "fp16", "bf16"], 4)
    return tuple(
        Call(m=19, k=64, steps=tuple(steps), out=out, ends=ends, **kind)
        for steps, kind, out in zip(cuts, kinds, outs, strict=True)
    )


@pytest.mark.skipif(bool(build.toolchain_missing()), reason=build.toolchain_missing())
def test_every_step_in_any_order_and_every_type_of_result(tmp_path):
    programs = {kernel.name: (examples.FAMILIES[kernel.family], kernel) for kernel in KERNELS}
    library = build.build_kernels(examples.unit_text(programs, ["fp32", "fp16", "bf16"]), tmp_path / "kernels.so")
    cases = [
        examples.case_of(kernel.name, examples.FAMILIES[kernel.family], kernel,
                         drawn(seed, (5, 5, 19) if "grouped" in kernel.family else ()))
        for seed, kernel in enumerate(KERNELS)
    ]  # fmt: skip
    verdicts = run.run(run.Job(machine=str(build.machine()), library=str(library), cases=cases), tmp_path)
    assert {kernel.name for kernel in KERNELS} == verdicts.keys()
    assert {symbol: verdict for symbol, verdict in verdicts.items() if not verdict.right} == {}


def test_formulas_say_what_frameworks_mean():
    x = np.linspace(-12, 12, 97)
    erf = np.vectorize(math.erf)
    expected = {
        "relu": np.where(x > 0, x, 0),
        "gelu": x / 2 * (1 + erf(x / math.sqrt(2))),
        "gelutanh": x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        "silu": x / (1 + np.exp(-x)),
        "sigmoid": 1 / (1 + np.exp(-x)),
        "tanh": np.tanh(x),
        "hardswish": x * np.minimum(np.maximum(x + 3, 0), 6) / 6,
        "hardsigmoid": np.minimum(np.maximum(x + 3, 0), 6) / 6,
        "relu6": np.minimum(np.maximum(x, 0), 6),
        "mish": x * np.tanh(np.log1p(np.exp(x))),
    }
    assert expected.keys() == {name for name, step in STEPS.items() if not step.operands}
    for name, values in expected.items():
        np.testing.assert_allclose(STEPS[name].apply(x, {}), values, rtol=1e-13, atol=1e-13, err_msg=name)


def test_a_step_whose_number_has_no_room_in_a_launch_is_not_for_devices() -> None:
    assert not has_bits("mish") and has_bits("prelu")
    assert fused(Op.parse("dense:n=8,k=8,dtype=fp16,epilogue=bias+mish")) is None
    assert "mish" not in steps_text()


def test_what_a_launch_is_told():
    assert {name for _, steps in BUILT for name in steps} == set(filter(has_bits, STEPS))
    assert decoded(0x31) == ("bias", "gelu") and decoded(0) == ()
    assert coded(("bias", "gelu")) == 0x31 and coded(("scale", "relu6", "residual")) == 0xCAD
    fusion = fused(Op.parse("dense:n=8,k=8,dtype=fp16,out=fp32,epilogue=residual+bias"))
    assert fusion is not None and (fusion.steps, fusion.residual, fusion.y_type) == (0, True, 1)
    own = fused(Op.parse("dense:n=8,k=8,dtype=fp16,out=fp16"))
    assert own is not None and own.y_type == 0
    assert fused(Op.parse("dense:n=8,k=8,out=int8")) is None


@pytest.mark.parametrize(
    ("op", "steps"),
    [
        ("dense:n=8,k=8,epilogue=residual+bias", 0),
        ("dense:n=8,k=8,epilogue=bias+relu", coded(("bias", "relu"))),
        ("dense:n=8,k=8,dtype=fp16,out=fp32", ANY_STEPS),
        ("conv2d:c=8,f=8,r=3,s=3,epilogue=bias", 0),
        ("conv2d:c=8,f=8,r=3,s=3,epilogue=bias+relu", coded(("bias", "relu"))),
        ("conv_transpose2d:c=8,f=8,r=3,s=3,epilogue=bias+relu", 0),  # the launch that gathers has them
        ("conv_transpose2d:c=8,f=8,r=3,s=3,dtype=fp16", ANY_STEPS),  # products in fp32
    ],
)
def test_kernels_are_built_for_steps_where_the_op_has_some(op, steps):
    parsed_op = Op.parse(op)
    assert steps_of(parsed_op) == steps
    families = CudaBackend().families(parsed_op)
    step_params = {point.params[-1] for family in families for point in family.points(parsed_op, examples.device("sm_80"))}
    assert {value if name == "ep" else 0 for name, value in step_params} == {steps}


def test_a_kernel_without_steps_is_not_packed_for_an_op_with_some():
    op = Op.parse("batch_matmul:k=16,layout=nt,dtype=fp16,epilogue=gelu").name
    other = tuple(stepped(kernel, coded(("relu",))) for kernel in PRODUCT_FP16.kernels)
    with pytest.raises(ValueError, match="not built for the steps"):
        pack_data([packed_product(op, other)], Path("never-read.cubin"), "sm_80")
    with pytest.raises(ValueError, match="not built for the steps"):
        pack_data([packed_product(op, PRODUCT_FP16.kernels)], Path("never-read.cubin"), "sm_80")
