"""Generated kernels through C and torch.ops: named kinds, attention, groups of one or several outputs, views, in place."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.backends.cpu.pack_source import pack_library
from haotuner.pack.write import write_pack
from haotuner.spec import numerics
from haotuner.spec.call_case import CallCase
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from haotuner.tuning.request import ops_of
from tests.codegen.groups_beside import deep, joint, maps, norm
from tests.run_folder import toolchain
from tests.runtime.native_builds import ASAN, HERE, LIBRARY, cc
from tests.runtime.online_packs import online_op
from tests.runtime.packs import document
from tests.runtime.test_generated import SPECS, packed
from tests.standin.patience import WALL_S

pytestmark = pytest.mark.long

KINDS = (*SPECS, "rms_norm:", "log_softmax:", "gelu:", "silu:")
ATTENTION = ("attention:d=24", "attention:d=8,causal=end,mask=keys")
CODES = {"f": 2, "i": 0, "u": 1}  # of DLPack


def groups(folder: Path) -> list[Op]:
    """Those of the files that the tests of groups write; none without onnx."""
    try:
        import onnx  # noqa: F401
    except ImportError:
        return []
    from tests.runtime.test_group import files

    return [op for file in files(folder) for op in ops_of(f"group:{file}")]


@pytest.fixture(scope="module")
def generated_pack(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Op]]:
    folder = tmp_path_factory.mktemp("doors")
    ops = [*map(Op.parse, KINDS), *groups(folder)]
    ops += [op for graph in (norm(), maps(), deep()) for op in joint(graph, f"beside_{len(graph.outputs)}")]
    every, library = [*map(packed, ops), *map(online_op, ATTENTION)], folder / "doors.so"
    pack_library(every, "x86-64", toolchain(), library)
    write_pack(folder / "pack", library, document(every, "x86-64"), lambda _: None)
    return folder / "pack", [*ops, *map(Op.parse, ATTENTION)]


def shapes(op: Op) -> Iterator[Shape]:
    """Few and many of every axis, on both sides of the tuned range's end."""
    for first, last in ((1, 1), (2, 17), (5, 60)):
        yield Shape.of({axis: last if axis == op.dynamic[-1] else first for axis in op.dynamic})


class Call:
    """One call of C: its line, and what memory it leaves."""

    def __init__(self, folder: Path, op: Op, inputs: dict[str, Any], shape: Shape, in_place: int = -1) -> None:
        self.op, self.in_place = op, in_place
        written = op.meaning.written
        self.outs = {
            operand.name: numerics.Guarded(op.operand_shape(operand, shape), op.dtype_of(operand)) for operand in written
        }
        self.case = CallCase(op, shape, {name: value.copy() for name, value in inputs.items()})
        self.views = [numerics.spaced(value, 3) if value.ndim else value for value in inputs.values()]
        folder.mkdir()
        self.left = {name: folder / f"left_{name}" for name in self.outs}
        every = (*self.views, *(guarded.inner for guarded in self.outs.values()))
        descriptions = [self._told(view, folder / f"{index}") for index, view in enumerate(every)]
        self.line = " ".join((op.name, str(in_place), ",".join(map(str, self.left.values())), *descriptions))

    @staticmethod
    def _told(view: Any, file: Path) -> str:
        root = root_of(view)
        root.tofile(file)
        offset = view.__array_interface__["data"][0] - root.__array_interface__["data"][0]
        axes = [",".join(map(str, sizes)) or "." for sizes in (view.shape, (step // view.itemsize for step in view.strides))]
        return ":".join((str(CODES[view.dtype.kind]), str(view.itemsize * 8), str(offset), *axes, str(file)))

    def judge(self) -> None:
        """What the call left is right, and nothing beside it was written."""
        outs = {
            name: guarded.inner if self.in_place < 0 else self.views[self.in_place] for name, guarded in self.outs.items()
        }
        before = {}
        for name, output in outs.items():
            root = root_of(output)
            output[...] = 0
            before[name] = root.copy()
            root.reshape(-1)[...] = np.fromfile(self.left[name], root.dtype)
        verdict = self.case.verdict(outs)
        assert verdict.wrong == 0, (self.line, str(verdict))
        for name, output in outs.items():
            output[...] = 0
            np.testing.assert_array_equal(root_of(output), before[name], self.line)


def root_of(view: Any) -> Any:
    """The array whose memory a view is of."""
    while view.base is not None:
        view = view.base
    return view


def served(program: Path, pack: Path, threads: int, lines: Sequence[str]) -> list[str]:
    done = subprocess.run(
        [program, pack, str(threads)],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=WALL_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cc([HERE / "generated.c", *LIBRARY], tmp_path_factory.mktemp("c") / "generated", *ASAN)


def in_place(path: Path) -> dict[str, list[int]]:
    """Inputs that may be the output, by op, as the manifest has them."""
    with haotuner.load(path, threads=1) as pack:
        entries = {name: pack.op_entry(name) for name in pack.ops}
    return {name: [i for i, operand in enumerate(entry.inputs) if operand.in_place] for name, entry in entries.items()}


@pytest.mark.parametrize("threads", [1, 2])
def test_from_c(generated_pack: Any, program: Path, tmp_path: Path, threads: int) -> None:
    path, ops = generated_pack
    over, rng = in_place(path), np.random.default_rng(0)
    calls: list[Call] = []
    for op in ops:
        for shape in shapes(op):
            inputs = numerics.draw(op, shape, rng)
            for input_index in (-1, *over[op.name]):
                where = tmp_path / f"{len(calls)}"
                calls.append(Call(where, op, inputs, shape, input_index))
    assert any(call.in_place >= 0 for call in calls)
    answers = served(program, path, threads, [call.line for call in calls])
    assert answers == ["ok"] * len(calls)
    for call in calls:
        call.judge()


def test_what_c_refuses(generated_pack: Any, program: Path, tmp_path: Path) -> None:
    path, _ = generated_pack
    op, rng = Op.parse("softmax:"), np.random.default_rng(0)
    shape = Shape.of(m=4, n=9)
    inputs = numerics.draw(op, shape, rng)
    good = Call(tmp_path / "good", op, inputs, shape)
    name, input_index, left, x, y = good.line.split(" ")
    lines = [
        " ".join((name, input_index, left, x.replace("2:32:", "2:64:", 1), y)),
        " ".join((name, input_index, left, x.replace(":4,9:", ":3,9:"), y)),
        " ".join((name, input_index, left, x)),
        " ".join((name, input_index, left, x, x, y)),
        " ".join(("transpose_heads", "0", *good.line.split(" ")[2:])),
        good.line,
    ]
    *refused, last = served(program, path, 2, lines)
    assert last == "ok" and all(answer.startswith("refused ") for answer in refused)
    for answer, why in zip(refused, ("dtype", "must be equal", "takes 2 tensors", "takes 2 tensors", ""), strict=True):
        assert why in answer
    good.judge()


def test_torch_has_each(generated_pack: Any) -> None:
    torch = pytest.importorskip("torch")
    import haotuner.torch as adapter

    path, ops = generated_pack
    over, rng = in_place(path), np.random.default_rng(0)
    with torch.inference_mode(), haotuner.load(path, threads=2) as pack, adapter.register(pack):
        for op in ops:
            call = getattr(torch.ops.haotuner, op.name)
            for shape in shapes(op):
                inputs = numerics.draw(op, shape, rng)
                operands = [torch.from_numpy(value) for value in inputs.values()]
                result = call(*operands)
                order = [operand.name for operand in pack.op_entry(op.name).in_file_order]
                tensors = result if len(order) > 1 else (result,)
                made_of = {name: tensor.numpy() for name, tensor in zip(order, tensors, strict=True)}
                assert CallCase(op, shape, inputs).verdict(made_of).wrong == 0, (op.name, shape)
                outs = [torch.empty_like(tensor) for tensor in tensors]
                names = [f"out{at}" for at in range(len(order))] if len(order) > 1 else ["out"]
                call.out(*operands, **dict(zip(names, outs, strict=True)))
                assert all(torch.equal(out, other) for out, other in zip(outs, tensors, strict=True))
                for input_index in over[op.name]:
                    own = [value.clone() for value in operands]
                    call.out(*own, out=own[input_index])
                    assert numerics.check(op, inputs, own[input_index].numpy()).wrong == 0, (op.name, shape, input_index)
