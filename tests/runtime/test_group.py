"""Groups from ONNX files: their kinds, packs that hold them, what is served, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
import haotuner  # noqa: E402, after the skip
from haotuner.backends.cpu.pack_op import PackedSliced, SlicedEntry, SlicedKernel, SlicedPlan  # noqa: E402
from haotuner.backends.cpu.pack_source import pack_library  # noqa: E402
from haotuner.cost.families import Foreign, problem_of  # noqa: E402
from haotuner.errors import UsageError  # noqa: E402
from haotuner.frontends.onnx.read import read  # noqa: E402
from haotuner.graph.interpret import interpret  # noqa: E402
from haotuner.microkernels.cpu.generated import CpuGenerated  # noqa: E402
from haotuner.microkernels.cpu.online_softmax import CpuOnline  # noqa: E402
from haotuner.microkernels.index import families_for, family_named  # noqa: E402
from haotuner.ops.groups import digest_of, learn  # noqa: E402
from haotuner.pack.write import write_pack  # noqa: E402
from haotuner.runtime.group import named_so  # noqa: E402
from haotuner.spec import numerics  # noqa: E402
from haotuner.spec.op import Op  # noqa: E402
from haotuner.spec.record import OpName  # noqa: E402
from haotuner.spec.shape import Shape  # noqa: E402
from haotuner.tuning.request import ops_of  # noqa: E402
from haotuner.verify.pack_check import not_verified, verify  # noqa: E402
from haotuner.verify.pack_groups import learn_from, meaning_of  # noqa: E402
from tests.run_folder import toolchain  # noqa: E402
from tests.runtime.packs import document  # noqa: E402

helper, FLOAT, INT32, INT64 = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT32, onnx.TensorProto.INT64
node = helper.make_node


def saved(path: Path, nodes: list[Any], inputs: dict[str, list[Any]], outputs: list[str], **weights: Any) -> Path:
    initializers = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    graph_inputs = [helper.make_tensor_value_info(n, INT32 if n == "at" else FLOAT, shape) for n, shape in inputs.items()]
    graph_outputs = [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "group", graph_inputs, graph_outputs, initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def files(folder: Path) -> list[Path]:
    """Softmax behind a bias, transposed; two outputs, one of them longer than any input; rows by index, normed, halved."""
    return [
        saved(folder / "biased.onnx", [
            node("Add", ["x", "b"], ["s"]), node("Softmax", ["s"], ["p"], axis=-1),
            node("Transpose", ["p"], ["t"], perm=[1, 0]),
        ], {"x": ["Rows", "Cols"], "b": ["Cols"]}, ["t"]),
        saved(folder / "two.onnx", [
            node("Add", ["x", "r"], ["s"]), node("ReduceMean", ["s", "axes"], ["mean"], keepdims=0),
            node("Concat", ["x", "s"], ["c"], axis=1),
        ], {"x": ["m", "n"], "r": ["m", "n"]}, ["mean", "c"], axes=np.array([1])),
        saved(folder / "looked-up.onnx", [
            node("Gather", ["table", "at"], ["g"], axis=0), node("ReduceL2", ["g", "axes"], ["l"], keepdims=1),
            node("Div", ["g", "l"], ["e"]), node("Sign", ["e"], ["sign"]), node("Mul", ["e", "sign"], ["f"]),
            node("Round", ["g"], ["whole"]), node("Add", ["f", "whole"], ["d"]),
            node("Slice", ["d", "from", "to", "along", "by"], ["Y out"]),
        ], {"table": ["v", 24], "at": ["m"]}, ["Y out"], axes=np.array([1]), **{
            "from": np.array([1]), "to": np.array([24]), "along": np.array([1]), "by": np.array([2]),
        }),
    ]  # fmt: skip


def packed(op: Op) -> PackedSliced:
    (family,) = families_for(op, "cpu")
    assert isinstance(family, CpuGenerated)
    rank = len(op.meaning.output.axes({}))
    microkernels = [family._kernel(1, 1, rank, 0, ()), family._kernel(4, 2, rank, 0, ())]
    kernels = [SlicedKernel(name=k.name, tile=dict(family.tile(k).extent), kernel=k) for k in microkernels]
    share = next((axis for axis in op.parallel if axis in op.dynamic), None)
    entries = [SlicedEntry(kernel=0), SlicedEntry(kernel=1, axis=share)]
    plans = [SlicedPlan(threads=count, grid={op.dynamic[0]: (3, 40)}, entries=entries) for count in (1, 2)]
    return PackedSliced.of(op, dict.fromkeys(op.dynamic, (1, 40)), kernels, plans)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("groups")
    ops = [packed(op) for file in files(folder) for op in ops_of(f"group:{file}")]
    pack_library(ops, "x86-64", toolchain(), folder / "groups.so")
    write_pack(folder / "pack", folder / "groups.so", document(ops, "x86-64"), lambda _: None)
    with haotuner.load(folder / "pack", threads=2) as opened:
        yield opened


def drawn(name: str, m: int, n: int) -> dict[str, Any]:
    rng = np.random.default_rng(m)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape, dtype=np.float32)

    return {
        "biased": {"x": normal(m, n), "b": normal(n)},
        "two": {"x": normal(m, n), "r": normal(m, n)},
        "looked-up": {"table": normal(n, 24), "at": rng.integers(-n, n, m).astype(np.int32)},
    }[name]


@pytest.mark.parametrize("m, n", [(1, 1), (3, 17), (37, 5), (64, 130)])
@pytest.mark.parametrize("name", ["biased", "two", "looked-up"])
def test_a_group_is_served(pack, name, m, n):
    inputs, file = drawn(name, m, n), pack.path.parent / f"{name}.onnx"
    expected = list(interpret(read(file), inputs).values())
    op = pack.op(f"group_{name.replace('-', '_')}")
    result = op.run(**inputs)
    outs = [result] if len(expected) == 1 else list(result)
    for output, other in zip(outs, expected, strict=True):
        np.testing.assert_allclose(output, other, rtol=2e-5, atol=2e-6)
    again = op.run(*inputs.values(), out=outs[0] if len(expected) == 1 else tuple(map(np.empty_like, outs)))
    np.testing.assert_array_equal(again if len(expected) == 1 else again[1], outs[-1])


def test_a_pack_of_groups_is_verified_and_explains_itself(pack):
    assert verify(pack.path, most_flops=1e6) == [] and not_verified(pack.path) == []
    learn_from(pack.path)
    (name,) = (name for name in pack.ops if name.startswith("group_two_c_"))
    entry = pack.op_entry(name)
    assert [axis.formula for axis in entry.axes if axis.derived] == ["2*n"] and meaning_of(entry).parallel == ("m", "y1")


def test_a_group_whose_name_begins_with_anothers_is_no_output_of_it():
    outputs = {"group_two_mean_0a": "mean", "group_two_y_out_0b": "Y out", "group_two_more_0c": "t", "group_on_0d": "c"}
    assert named_so(outputs, "group_two") == ("group_two_mean_0a", "group_two_y_out_0b")
    assert named_so(outputs, "group_two_more") == ("group_two_more_0c",)
    assert named_so(outputs, "group_on") == ("group_on_0d",) and named_so(outputs, "two") == ()


def test_what_a_call_of_a_group_refuses(pack):
    two = pack.op("group_two")
    x = np.ones((3, 4), np.float32)
    with pytest.raises(TypeError, match="the group takes x, r; got 1 in order"):
        two.run(x)
    with pytest.raises(UsageError, match="out= takes 2 tensors, for mean, c; got 1"):
        two.run(x, x, out=(x,))
    (name,) = (name for name in pack.ops if name.startswith("group_two_c_"))
    with pytest.raises(ValueError, match=r"must be of the shape \(3, 8\), got \(3, 7\)"):
        pack.op(name).run(x, x, out=np.empty((3, 7), np.float32))
    with pytest.raises((ValueError, TypeError)):
        two.run(x, np.ones((3, 5), np.float32))


def refused(folder: Path, nodes: list[Any], inputs: dict[str, list[Any]], outputs: list[str], **weights: Any) -> str:
    with pytest.raises(UsageError) as error:
        ops_of(f"group:{saved(folder / 'bad.onnx', nodes, inputs, outputs, **weights)}")
    return str(error.value)


def test_files_that_make_no_group(tmp_path):
    x = {"x": ["m", "n"]}
    cycle = [node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"])]
    assert "a cycle, or out of order" in refused(tmp_path, cycle, x, ["b"])
    assert "operators without a rule: StringNormalizer" in refused(
        tmp_path, [node("StringNormalizer", ["x", "x", "x"], ["y"])], x, ["y"]
    )
    assert "single numbers" in refused(tmp_path, [node("Add", ["x", "w"], ["y"])], x, ["y"], w=np.ones(3, np.float32))
    assert "nothing to compute" in refused(tmp_path, [], x, ["x"])
    assert "the dimension twice" in refused(tmp_path, [node("Relu", ["x"], ["y"])], {"x": ["n", "n"]}, ["y"])
    assert "at least one dimension must be a name" in refused(tmp_path, [node("Relu", ["x"], ["y"])], {"x": [2, 3]}, ["y"])
    nine = {f"x{index}": ["n"] for index in range(9)}
    assert "room for" in refused(tmp_path, [node("Sum", list(nine), ["y"])], nine, ["y"])
    empty = [node("ReduceMax", ["x", "axes"], ["y"])]
    assert "reduces over nothing" in refused(tmp_path, empty, {"x": ["m", 0]}, ["y"], axes=np.array([1]))
    rest = [node("Mod", ["x", "x"], ["y"], fmod=1)]
    assert "a remainder of fp32" in refused(tmp_path, rest, x, ["y"])
    mixed = [node("Add", ["x", "at"], ["y"])]
    assert "different element types" in refused(tmp_path, mixed, x | {"at": ["m", "n"]}, ["y"])
    with pytest.raises(UsageError, match="name the file"):
        ops_of("group:")
    with pytest.raises(UsageError, match="cannot be read"):
        ops_of(f"group:{tmp_path / 'none.onnx'}")
    with pytest.raises(UsageError, match="known by its file or by the pack"):
        Op.parse("group_softmax_12345678")


def test_a_name_means_one_definition():
    with pytest.raises(ValueError, match="hash of its definition"):
        learn(Op.parse("softmax:").meaning, "{}")
    assert digest_of("a") != digest_of("b")


def test_attention_written_as_a_group_gets_online_sums(tmp_path):
    file = saved(tmp_path / "att.onnx", [
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]), node("MatMul", ["q", "kt"], ["scores"]),
        node("Mul", ["scores", "scale"], ["scaled"]), node("Softmax", ["scaled"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["y"]),
    ], {"q": ["b", "t", 16], "k": ["b", "s", 16], "v": ["b", "s", 16]}, ["y"], scale=np.float32(0.25))  # fmt: skip
    (op,) = ops_of(f"group:{file}")
    (family,) = families_for(op, "cpu")
    assert isinstance(family, CpuOnline) and op.parallel == ("b", "t") and family_named(family.name) is family
    rng = np.random.default_rng(0)
    inputs = numerics.draw(op, Shape.of(b=2, t=3, s=5), rng)
    expected = next(iter(interpret(read(file), inputs).values()))
    np.testing.assert_allclose(numerics.reference(op, inputs), expected, rtol=1e-5, atol=1e-6)
    assert (
        numerics.check(op, inputs, expected).wrong == 0
        and numerics.check(op, inputs, expected * np.float32(1.001)).wrong > 0
    )


def test_records_of_groups_are_read_with_and_without_their_file(tmp_path):
    op = ops_of(f"group:{files(tmp_path)[0]}")[0]
    assert problem_of(OpName(op.name)) == op
    assert isinstance(problem_of(OpName("group_of_another_host_12345678")), Foreign)
    assert problem_of(OpName("layer_norm_scalebias_1em12")) == Op.parse("layer_norm:affine=scale_bias,eps=1e-12")
