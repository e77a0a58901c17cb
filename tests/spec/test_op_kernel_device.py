"""Operators, micro-kernels and devices: names that parse back, values that check themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haotuner.errors import HaotunerError, UsageError
from haotuner.ops.convolution import is_convolution
from haotuner.ops.dtypes import DTYPE_BYTES
from haotuner.ops.epilogue import STEPS, operands_of
from haotuner.ops.index import KINDS
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.limits import MAX_EXTRA
from haotuner.spec.op import Op
from haotuner.spec.shape import AXIS_LIMIT, Shape

extents = st.integers(1, AXIS_LIMIT)
MOST_AXES = max(len(kind.axes) for kind in KINDS.values())


def few_operands(steps: list[str]) -> bool:
    return sum(1 for _ in operands_of(steps)) <= MAX_EXTRA


def fitting(kind: str) -> set[str]:
    """Epilogue steps that neither are nor read what has a name in the kind already."""
    own = {operand.name for operand in KINDS[kind].operands}
    own |= {value for option in KINDS[kind].options.values() for value in option.choices}
    return {name for name, step in STEPS.items() if not own & {name, *(operand for operand, _ in step.operands)}}


@st.composite
def convolutions(draw: st.DrawFn, kind: str) -> Op:
    small, groups, sides = st.integers(1, 9), draw(st.integers(1, 4)), 1 if "1d" in kind else 2
    static = {
        "c": groups * draw(small),
        "f": groups * draw(small),
        "s": draw(small),
        **({} if sides == 1 else {"r": draw(small)}),
    }
    numbers = {"stride": sides, "dilation": sides, "pad": 2 * sides}
    options = {name: ".".join(str(draw(small)) for _ in range(draw(st.sampled_from((1, n))))) for name, n in numbers.items()}
    layout = draw(st.sampled_from(KINDS[kind].options["layout"].choices))
    return Op(
        kind=kind,
        static=tuple(draw(st.permutations(list(static.items())))),
        options=(("layout", layout), ("groups", str(groups)), *options.items()),
    )


@st.composite
def ops(draw: st.DrawFn) -> Op:
    kind = draw(st.sampled_from(sorted(KINDS)))
    if is_convolution(kind):
        return draw(convolutions(kind))
    static = draw(st.dictionaries(st.sampled_from(list(KINDS[kind].axes)), extents))
    dtype = draw(st.sampled_from(sorted(DTYPE_BYTES)))
    return Op(
        kind=kind,
        static=tuple(draw(st.permutations(list(static.items())))),
        dtype=dtype,
        options=tuple(
            (name, draw(st.sampled_from(option.choices or (option.default,))))
            for name, option in KINDS[kind].options.items()
            if name != "in" or dtype == "int8"  # signed or not: a choice of bytes alone
        ),
        epilogue=tuple(draw(st.lists(st.sampled_from(sorted(fitting(kind))), unique=True).filter(few_operands))),
    )


@given(ops())
def test_an_op_parses_back_from_its_name_and_from_its_spec(op):
    assert Op.parse(op.name) == op
    fields = [f"{axis}={extent}" for axis, extent in op.static] + [
        f"dtype={op.dtype}",
        *(f"{name}={value}" for name, value in op.all_options().items()),
    ]
    fields += [f"epilogue={'+'.join(op.epilogue)}"] if op.epilogue else []
    assert Op.parse(f"{op.kind}:{','.join(fields)}") == op


@given(ops(), st.lists(extents, min_size=MOST_AXES, max_size=MOST_AXES))
def test_flops_and_bytes_are_those_of_the_formula(op, given_extents):
    shape = Shape.of(dict(zip(op.dynamic, given_extents, strict=False)))
    full = op.extents(shape)
    if op.kind == "dense":
        m, n, k = full["m"], full["n"], full["k"]
        assert op.flops(shape) == 2 * m * n * k
        x, weight, y = (DTYPE_BYTES[op.dtype_of(operand)] for operand in op.meaning.operands)
        read = {name: (m * n if len(axes) == 2 else n) for name, axes in op.epilogue_operands.items()}
        extra = sum(count * DTYPE_BYTES[op.extra_dtype(name)] for name, count in read.items())
        assert op.least_bytes(shape) == m * k * x + n * k * weight + m * n * y + extra
    assert {*op.dynamic, *(axis for axis, _ in op.static)} == set(op.axes)


def test_names_append_only_what_differs_from_the_defaults():
    assert Op.parse("dense:n=2304,k=768").name == "dense_n2304_k768"
    assert Op.parse("dense:k=768,n=2304").name == "dense_n2304_k768"
    full = Op.parse("dense: n=2304, k=768, dtype=fp16, weight=kn, epilogue=bias+gelu")
    assert full.name == "dense_n2304_k768_fp16_kn_bias_gelu"
    assert full.dynamic == ("m",)
    assert full["n"] == 2304


@pytest.mark.parametrize(
    "text, why",
    [
        ("", "unknown op kind ''"),
        ("conv:n=1", "unknown op kind 'conv'; did you mean 'conv2d'? known kinds: add_layer_norm"),
        ("dense:n", "'n' is not KEY=VALUE"),
        ("dense:n=", "'n=' is not KEY=VALUE"),
        ("dense:n=0", "n=0 must be in 1..2^31-1"),
        ("dense:n=2147483648", "must be in 1..2^31-1"),
        ("dense:n=-1", "n='-1' is not a whole number"),
        ("dense:n=1e3", "n='1e3' is not a whole number"),
        ("dense:n=٣", "is not a whole number"),
        ("dense:n=1,n=2", "an axis is given twice"),
        ("dense:z=3", "has no axis 'z'; its axes are m, n, k"),
        ("dense:dtype=int4", "unknown dtype 'int4'; known: fp32"),
        ("dense:dtype=fp16,dtype=bf16", "dtype is given twice"),
        ("dense:weight=ab", "allowed are nk, kn"),
        ("conv2d:c=4,f=4,r=1,s=1,pad=1.2.3", "allowed are 1 or 2 or 4 whole numbers with dots between them"),
        ("dense:epilogue=swish", "unknown epilogue 'swish'"),
        ("dense:epilogue=bias+bias", "given twice"),
        ("dense:epilogue=scale+bias+clamp+prelu+residual", "5 operands at most, not 6"),
        ("dense_n1_x", "cannot read 'x'"),
        ("dense_n1_", "cannot read ''"),
        ("dense_n1_fp16_bf16", "names fp16 and bf16"),
        ("dense_n1_kn_nk", "names kn and nk"),
        ("dense_n1_n2", "an axis is given twice"),
        ("dense_n٣", "cannot read"),
    ],
)
def test_an_op_that_cannot_be_is_told(text, why):
    with pytest.raises(UsageError) as caught:
        Op.parse(text)
    assert why in str(caught.value)


@given(st.text(max_size=25))
def test_any_text_is_an_op_or_refused(text):
    try:
        op = Op.parse(text)
    except UsageError:
        return
    assert Op.parse(op.name) == op


families = st.from_regex(r"[a-z0-9]{1,6}(_[a-z0-9]{1,6}){0,3}", fullmatch=True)
params = st.dictionaries(st.from_regex(r"[a-z]{1,6}", fullmatch=True), st.integers(0, 2**40), min_size=1, max_size=6)


@given(families, params)
def test_a_micro_kernel_parses_back_from_its_name(family, values):
    kernel = MicroKernel(family, tuple(values.items()))
    assert MicroKernel.parse(kernel.name) == kernel
    assert kernel.name.isidentifier() or family[0].isdigit()
    assert all(kernel[key] == value for key, value in values.items())


@pytest.mark.parametrize(
    "family, values",
    [
        ("cpu", ()),
        ("cpu", (("mr", -1),)),
        ("cpu", (("m2", 1),)),
        ("cpu", (("MR", 1),)),
        ("cpu", (("mr", 1.5),)),
        ("cpu", (("mr", True),)),
        ("cpu", (("mr", 1), ("mr", 2))),
        ("cpu__dense", (("mr", 1),)),
        ("cpu_", (("mr", 1),)),
        ("", (("mr", 1),)),
        ("CPU", (("mr", 1),)),
        ("cpü", (("mr", 1),)),
    ],
)
def test_a_micro_kernel_whose_name_would_not_parse_back_is_refused(family, values):
    with pytest.raises(ValueError):
        MicroKernel(family, values)


@pytest.mark.parametrize(
    "name", ["", "cpu", "cpu__", "cpu__mr", "cpu__mr06", "cpu__mr6_", "cpu__mr6\n", "cpu__mr6__nr8", "a__mr٣"]
)
def test_a_text_that_is_no_name_is_refused(name):
    with pytest.raises(ValueError):
        MicroKernel.parse(name)


@given(st.text(alphabet="abc019_", max_size=14))
def test_every_name_that_parses_is_the_name_of_what_it_parsed_to(name):
    try:
        kernel = MicroKernel.parse(name)
    except ValueError:
        return
    assert kernel.name == name


def test_an_absent_parameter_is_a_key_error_that_names_the_kernel():
    with pytest.raises(KeyError, match="cpu__mr6 has no parameter 'nr'"):
        MicroKernel.parse("cpu__mr6")["nr"]


def device(**changes: object) -> Device:
    fields: dict[str, object] = {
        **{"id": "cpu-zen4", "kind": "cpu", "name": "x", "arch": "znver4", "compute_units": 8, "wave_width": 16},
        **{"registers_per_thread": 32, "memory_gbps": 40.0, "memory_gbps_unit": 15.0, "peak_gflops": 800.0},
        "peak_gflops_unit": 100.0,
    }
    return Device(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [{"id": "H200"}, {"id": "a--b"}, {"id": ""}, {"compute_units": 0}, {"wave_width": -1}, {"memory_gbps": -0.1}],
)
def test_a_device_checks_itself(changes):
    with pytest.raises(ValueError, match="device"):
        device(**changes)


@given(st.integers(1, 8))
def test_a_subset_of_a_device_never_has_more_than_the_whole(units):
    whole, part = device(), device().with_units(units)
    assert part.compute_units == units
    assert part.peak_gflops == pytest.approx(100.0 * units)
    assert part.memory_gbps == min(40.0, 15.0 * units)
    assert part.numbers().keys() == whole.numbers().keys()
    assert whole.with_units(8) == whole


@pytest.mark.parametrize("units", [0, 9, -1])
def test_a_subset_outside_the_device_is_refused(units):
    with pytest.raises(ValueError, match="has 8 compute units"):
        device().with_units(units)


def test_every_error_a_user_can_meet_has_an_exit_code_of_the_contract():
    todo, seen = [HaotunerError], set()
    while todo:
        kind = todo.pop()
        seen.add(kind)
        todo += kind.__subclasses__()
    assert {kind.exit_code for kind in seen} <= {1, 2, 3, 4, 5}
