"""Packs with whole models for CUDA, built without tuning: an encoder through the planner, made-up plans of its products."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.backends.backend import GroupSources
from haotuner.backends.cuda.backend import CudaBackend
from haotuner.backends.cuda.pack_products import CudaEntry
from haotuner.backends.cuda.pack_source import PackedOnDevice, pack_library
from haotuner.backends.cuda.translation_unit import device_unit
from haotuner.backends.toolchain import Toolchain
from haotuner.errors import NothingLegal
from haotuner.graph import decompositions
from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.microkernels.cuda.families import BATCHED_FAMILIES, CUDA_FAMILIES
from haotuner.microkernels.cuda.fused import stepped, steps_of
from haotuner.pack.write import write_pack
from haotuner.partition.costs import GPU, Prices
from haotuner.partition.executable import (
    ExecutableModel,
    device_source_of,
    executable_chain,
    executable_specializations,
    source_of,
)
from haotuner.partition.greedy_fusion import Greedy, Specialization, Step
from haotuner.partition.ilp_partition import IlpPartitioner
from haotuner.partition.products import Product
from haotuner.partition.segments import chained, cut, data_dimensions, flattened
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from tests.run_folder import toolchain
from tests.runtime.cuda_odd_models import ODD
from tests.runtime.cuda_packs import document, family, packed_conv, packed_op, packed_product
from tests.runtime.native_builds import content_of
from tests.runtime.test_models import BESIDE
from tests.runtime.test_models import GRAPHS as GRAPHS_OF_LOOPS
from tests.runtime.test_models_ordered import GRAPHS as ORDERED
from tests.runtime.test_models_ordered import recurrent
from tests.runtime.test_quantised_models import Net
from tests.standin.cubins import cubin_of

B, T = dimension("batch"), dimension("seq")
ANY = "dense:n=16,k=16"  # a pack holds an op at least
WIDE, HEADS, WORDS, LAST = 32, 2, 50, 64
TILE = {"bm": 32, "bn": 64, "bk": 8, "tm": 4, "tn": 4, "v": 1}  # any alignment


def encoder() -> Graph:
    """Embeddings, a layer of attention under a mask, one of GELU, norms, and tokens joined by a softmax over them."""
    draw = np.random.default_rng(3)

    def numbers(*shape: int) -> Any:
        return (draw.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    g = GraphBuilder()
    ids, mask = g.input("ids", (B, T), "int64"), g.input("mask", (B, T), "int64")
    x = g.add("gather", g.constant(numbers(WORDS, WIDE)), ids, axis=0)

    def layer(of: str, n: int, k: int) -> str:
        return g.map("add", g.add("contract", of, g.constant(numbers(k, n)), labels="btk,kn->btn"), g.constant(numbers(n)))

    def norm(of: str) -> str:
        scale, bias = g.constant(numbers(WIDE)), g.constant(numbers(WIDE))
        return decompositions.affine(g, decompositions.normalise(g, of, (2,), 1e-5), scale, bias)

    def heads(of: str) -> str:
        apart = g.add("reshape", layer(of, WIDE, WIDE), shape=(B, T, HEADS, WIDE // HEADS))
        return g.add("transpose", apart, order=(0, 2, 1, 3))

    h = norm(x)
    q, k, v = heads(h), heads(h), heads(h)
    hidden = g.map("mul", g.map("sub", 1.0, g.add("cast", mask, dtype="fp32")), -1e4)
    scores = g.map("mul", g.add("contract", q, k, labels="bhtd,bhsd->bhts"), 0.25)
    shown = g.map("add", scores, g.add("reshape", hidden, shape=(B, 1, 1, T)))
    seen = g.add("contract", decompositions.softmax(g, shown, 3), v, labels="bhts,bhsd->bhtd")
    joined = g.add("reshape", g.add("transpose", seen, order=(0, 2, 1, 3)), shape=(B, T, WIDE))
    y = norm(g.map("add", layer(joined, WIDE, WIDE), x))
    z = norm(g.map("add", layer(decompositions.gelu(g, layer(y, 2 * WIDE, WIDE)), WIDE, 2 * WIDE), y))
    weights = decompositions.softmax(g, g.add("reduce", z, how="sum", axes=(2,), keepdims=True), 1)
    pooled = g.add("reduce", g.map("mul", z, weights), how="sum", axes=(1,))
    best = g.add("arg_reduce", pooled, how="max", axis=1)
    return g.finish(z, pooled, best)


def images() -> Graph:
    """Convolutions with what follows them, slopes among it, of channels in groups and of one tap, pools, and a layer."""
    draw = np.random.default_rng(4)
    g = GraphBuilder()
    x = g.input("x", (B, 3, T, T))

    def conv(of: str, f: int, c: int, taps: int, groups: int = 1) -> str:
        weight = (draw.standard_normal((f, c, taps, taps)) / (c * taps)).astype(np.float32)
        rows, columns = g.types[of].shape[2:]
        around = (0, 0, taps // 2, taps // 2)
        if taps > 1:
            wide = g.add("pad", of, before=around, after=around, mode="constant", value=0.0)
            of = g.add("window", wide, axes=(2, 3), sizes=(taps,) * 2, strides=(1, 1), dilations=(1, 1))
        if groups == 1:
            labels = "bcpquv,fcuv->bfpq" if taps > 1 else "bcpq,fc->bfpq"
            y = g.add("contract", of, g.constant(weight if taps > 1 else weight[:, :, 0, 0]), labels=labels)
        else:
            apart = g.add("reshape", of, shape=(B, groups, c, *g.types[of].shape[2:]))
            each = g.constant(weight.reshape(groups, f // groups, c, taps, taps))
            y = g.add("contract", apart, each, labels="bgcpquv,gfcuv->bgfpq")
            y = g.add("reshape", y, shape=(B, f, rows, columns))
        return g.map("add", y, g.constant(draw.standard_normal((f, 1, 1)).astype(np.float32)))

    h = g.map("max", conv(x, 8, 3, 3), 0.0)
    y = g.map("add", conv(h, 8, 8, 1), h)
    z = conv(y, 8, 4, 3, groups=2)
    slopes = g.constant(draw.standard_normal((8, 1, 1)).astype(np.float32))
    z = g.map("select", g.map("less", z, 0.0), g.map("mul", z, slopes), z)
    slid = g.add("window", z, axes=(2, 3), sizes=(2, 2), strides=(1, 1), dilations=(1, 1))
    pooled = g.add("reduce", slid, how="max", axes=(4, 5))
    features = decompositions.mean(g, pooled, (2, 3), keepdims=False)
    weight = g.constant(draw.standard_normal((8, 5)).astype(np.float32))
    return g.finish(pooled, g.add("contract", features, weight, labels="bk,kn->bn"))


def types() -> Graph:
    """Whole numbers of many widths, truths, doubles, and reductions of each along rows and across them."""
    g = GraphBuilder()
    x = g.input("x", (B, 3, T))
    small = g.add("cast", g.map("floor", g.map("mul", x, 4.0)), dtype="int32")
    wide = g.add("cast", small, dtype="int64")
    most = g.add("reduce", small, how="max", axes=(2,))
    least = g.add("reduce", g.add("cast", small, dtype="int8"), how="min", axes=(1,))
    even = g.map("equal", g.map("mod", wide, 2), 0)
    some = g.add("reduce", even, how="max", axes=(2,), keepdims=True)
    double = g.add("reduce", g.add("cast", x, dtype="fp64"), how="sum", axes=(2,))
    whole = g.add("reduce", g.map("floordiv", wide, 3), how="sum", axes=(0, 2))
    chosen = g.map("select", g.map("and", even, some), x, g.map("neg", x))
    index = g.add("arg_reduce", x, how="min", axis=2)
    everything = g.map("sub", x, g.add("reduce", x, how="max", axes=(0, 1, 2), keepdims=True))
    return g.finish(most, least, some, double, whole, chosen, index, everything)


def halves() -> Graph:
    """Both halves, computed as floats and rounded after every step, read and written as outputs."""
    g = GraphBuilder()
    x = g.input("x", (B, 3, T))
    half, brain = g.add("cast", x, dtype="fp16"), g.add("cast", x, dtype="bf16")
    rest = g.map("mod", g.map("mul", half, 3.0), 0.7)
    grown = g.map("mul", g.map("exp", brain), brain)
    most = g.add("reduce", grown, how="max", axes=(2,), keepdims=True)
    under = g.map("sub", grown, most)
    wide = g.add("cast", g.map("add", half, rest), dtype="fp32")
    return g.finish(rest, most, under, wide)


def of_bytes() -> Graph:
    """A convolution and layers of bytes with and without a sign, their scales beside them, and weights beyond int8."""
    n, draw = Net(B, 3, T, T), np.random.default_rng(5)
    q, scale, zero = n("DynamicQuantizeLinear", n.x, outputs=3)
    sums = n("ConvInteger", q, draw.integers(-128, 128, (8, 3, 3, 3), np.int8), zero, pads=[1, 1, 1, 1])
    rows = n("ReduceMean", n("Mul", n("Cast", sums, to=1), scale), np.array([2, 3]), keepdims=0)
    rows = n("MatMul", n.bytes_of(rows, 4.0, np.int8(5)), n.weight(draw.integers(-128, 128, (8, 20), np.int8), 0, 1))
    last = n.weight(draw.integers(0, 256, (20, 8), np.uint8), 60, 1)
    return n.g.finish(n("MatMul", n.bytes_of(rows, 8.0, np.uint8(9)), last), sums)


def given(graph: Graph, batch: int, seq: int) -> dict[str, Any]:
    """Inputs of a request; the last tokens of a mask are hidden."""
    draw, inputs = np.random.default_rng(batch * 100 + seq), dict[str, Any]()
    for name in graph.inputs:
        shape = [{"batch": batch, "seq": seq, "past": seq}.get(str(extent), extent) for extent in graph.types[name].shape]
        if name == "mask":
            inputs[name] = np.ones((batch, seq), np.int64)
            inputs[name][:, seq - seq // 3 :] = 0
        elif graph.types[name].dtype == "int64":
            most = seq if name == "at" else WORDS
            inputs[name] = draw.integers(-most, most, shape)  # type: ignore[arg-type]
        else:
            inputs[name] = draw.standard_normal(shape).astype(np.float32)  # type: ignore[arg-type]
    return inputs


GRAPHS = {"encoder": encoder(), "beside": BESIDE, "images": images(), "types": types(), "halves": halves(),
          "bytes": of_bytes(),
          "image": GRAPHS_OF_LOOPS["image"],
          "sums": GRAPHS_OF_LOOPS["sums"], "sorts": ORDERED["sorts"], "scatters": ORDERED["scatters"],
          **{name: ORDERED[name] for name in ("lstm_back", "lstm_bytes", "gru", "gru_back", "rnn_tanh")},
          "lstm_wide": recurrent("lstm", ("sigmoid", "tanh", "tanh"), width=84, reverse=False),
          **ODD}  # fmt: skip


def serves(op: Op) -> bool:
    """What this host's backend says."""
    try:
        return bool(CudaBackend().families(op))
    except NothingLegal:
        return False


def packed(name: str) -> PackedOnDevice:
    """A product with one kernel everywhere; layers of few rows sum k in two parts."""
    op = Op.parse(name)
    if op.dtype == "int8":
        return _packed_bytes(op)
    if op.kind in ("conv1d", "conv2d"):
        return packed_conv(op.name, (one_of(op, "cuda_batched_simt_fp32", kn=0),))
    if op.kind == "batch_matmul":
        kn = {"nt": 0, "nn": 1, "tn": 2}["".join(op.option("layout")) or "nn"]
        return packed_product(op.name, (one_of(op, "cuda_batched_simt_fp32", kn=kn),))
    unsplit = CudaEntry(regions=((0, 0),))
    split = CudaEntry(regions=((0, 0),), splits=2)
    return packed_op(op.name, (one_of(op, "cuda_simt_fp32"),), ((4, split), (200, unsplit)))


def _packed_bytes(op: Op) -> PackedOnDevice:
    """A product of bytes by the kernel that takes any alignment."""
    sign = "s" if op.option("in") == "int8" else ""
    if op.kind == "dense":
        return packed_op(op.name, (one_of(op, f"cuda_simt_{sign}int8", bk=32),), ((200, CudaEntry(regions=((0, 0),))),))
    return packed_conv(op.name, (one_of(op, "cuda_batched_simt_tint8", bk=32, kn=0),))


def one_of(op: Op, name: str, **more: int) -> MicroKernel:
    """A kernel of the family that takes any alignment, built for the op's steps."""
    kernel_family: Any = next(candidate for candidate in (*CUDA_FAMILIES, *BATCHED_FAMILIES) if candidate.name == name)
    kernel: MicroKernel = kernel_family.kernel(**(TILE | more))
    return stepped(kernel, steps_of(op))


def planned(
    name: str, graph: Graph, first: int = 0, *, tuned: bool = True
) -> tuple[tuple[ExecutableModel, ...], ExecutableModel | None, tuple[Step, ...]]:
    """A model, or its segments and how they are gone through, with all steps; ``first``: groups of the models before it."""
    segments, parts, every = cut(graph), list[ExecutableModel](), list[Step]()
    names = (*graph.dimensions, *data_dimensions(graph))
    sizes = [dict.fromkeys(names, size) | {"batch": 2} for size in (3, 60)]
    for index, segment in enumerate(flattened(segments)):
        if segment.graph is None:
            continue
        own = segment.graph
        steps = IlpPartitioner(own, Prices(sizes, GPU), serves=serves) if tuned else Greedy(own, tuned=False, serves=serves)
        called = f"{name}.{index}" if chained(segments) else name
        groups = first + sum(len(part.functions) for part in parts)
        parts.append(executable_specializations(called, own, [Specialization(tuple(steps.steps))], groups, on_device=True))
        every += steps.steps
    return tuple(parts), executable_chain(name, graph, segments, parts) if chained(segments) else None, tuple(every)


def model_pack(
    out: Path,
    arch: str,
    code: Path,
    graphs: Mapping[str, Graph],
    *,
    tuned: bool = True,
    linker: Toolchain | None = None,
    others: Callable[[Sequence[ExecutableModel]], Sequence[Any]] = lambda _: (),
    beside: Sequence[PackedOnDevice] = (),
) -> Path:
    """A pack of these graphs, its code below ``code`` as the code cache leaves it; without ``tuned`` groups alone.

    ``others``: models beside them, which have their groups and ops; ``beside``: ops that no model asks for.
    """
    models, chains, specs = list[Any](), list[Any](), dict[str, None]()
    for name, graph in graphs.items():
        first = sum(len(model.functions) for model in models)
        parts, chain, steps = planned(name, graph, first, tuned=tuned)
        models += parts
        chains += [] if chain is None else [chain]
        specs |= {step.op.name: None for step in steps if isinstance(step, Product)}
    models += others(models)
    ops = [*(packed(spec) for spec in specs or {ANY: None}), *beside]
    kernels = {kernel.name: (family(kernel), kernel) for op in ops for kernel in op.micro_kernels}
    code.mkdir(parents=True, exist_ok=True)
    unit = code / f"{out.name}.cu"
    unit.write_text(device_unit(kernels, reduces=("fp32",)))
    cubin = cubin_of(unit, code, arch).read_bytes()
    launches = [function for model in models for function in model.functions]
    groups = GroupSources(c=source_of([*models, *chains]), device=device_source_of(models), launches=launches, cache=code)
    library = out.with_suffix(".so")

    def compiled(kernels: Sequence[MicroKernel], arch: str, to: Path) -> None:
        to.write_bytes(cubin)

    manifest = pack_library(ops, arch, linker or toolchain(), library, compiled, groups)
    executables = [*models, *chains]
    ranges = {model.name: {dim: [1, LAST] for dim in model.document["dims"]} for model in executables}
    manifest = document(ops, arch) | manifest | {"tuning": {"model_ranges": ranges}}
    write_pack(out, library, manifest, lambda _: None, {model.name: content_of(model) for model in executables})
    library.unlink()
    return out
