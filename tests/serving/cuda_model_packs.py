"""Packs with whole models for CUDA, built without tuning: an encoder through the planner, made-up plans of its products."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.backends.backend import GroupSources
from haotuner.backends.cuda.backend import CudaBackend
from haotuner.backends.cuda.pack_dense import CudaEntry
from haotuner.backends.cuda.pack_source import PackedOnDevice, pack_library
from haotuner.backends.cuda.unit import device_unit
from haotuner.errors import NothingLegal
from haotuner.graph import composites
from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.microkernels.cuda.families import BATCHED_FAMILIES, CUDA_FAMILIES
from haotuner.orchestrate.costs import Prices
from haotuner.orchestrate.exact import Exact
from haotuner.orchestrate.products import Product
from haotuner.orchestrate.written import device_source_of, source_of, written
from haotuner.pack.write import write_pack
from haotuner.words.kernel import MicroKernel
from haotuner.words.op import Op
from tests.run_folder import toolchain
from tests.serving.cuda_packs import document, family, packed_op, packed_product
from tests.standin.cubins import cubin_of

B, T = dimension("batch"), dimension("seq")
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
        return composites.affine(g, composites.normalise(g, of, (2,), 1e-5), scale, bias)

    def heads(of: str) -> str:
        apart = g.add("reshape", layer(of, WIDE, WIDE), shape=(B, T, HEADS, WIDE // HEADS))
        return g.add("transpose", apart, order=(0, 2, 1, 3))

    h = norm(x)
    q, k, v = heads(h), heads(h), heads(h)
    hidden = g.map("mul", g.map("sub", 1.0, g.add("cast", mask, dtype="fp32")), -1e4)
    scores = g.map("mul", g.add("contract", q, k, labels="bhtd,bhsd->bhts"), 0.25)
    shown = g.map("add", scores, g.add("reshape", hidden, shape=(B, 1, 1, T)))
    seen = g.add("contract", composites.softmax(g, shown, 3), v, labels="bhts,bhsd->bhtd")
    joined = g.add("reshape", g.add("transpose", seen, order=(0, 2, 1, 3)), shape=(B, T, WIDE))
    y = norm(g.map("add", layer(joined, WIDE, WIDE), x))
    z = norm(g.map("add", layer(composites.gelu(g, layer(y, 2 * WIDE, WIDE)), WIDE, 2 * WIDE), y))
    weights = composites.softmax(g, g.add("reduce", z, how="sum", axes=(2,), keepdims=True), 1)
    pooled = g.add("reduce", g.map("mul", z, weights), how="sum", axes=(1,))
    best = g.add("arg_reduce", pooled, how="max", axis=1)
    return g.finish(z, pooled, best)


def given(graph: Graph, batch: int, seq: int) -> dict[str, Any]:
    """Inputs of a request; the last tokens are hidden."""
    draw = np.random.default_rng(batch * 100 + seq)
    mask = np.ones((batch, seq), np.int64)
    mask[:, seq - seq // 3 :] = 0
    return {"ids": draw.integers(-WORDS, WORDS, (batch, seq)), "mask": mask}


GRAPHS = {"encoder": encoder}


def serves(op: Op) -> bool:
    """What this host's backend says."""
    try:
        return bool(CudaBackend().families(op))
    except NothingLegal:
        return False


def packed(name: str) -> PackedOnDevice:
    """A product with one kernel everywhere; layers of few rows sum k in two parts."""
    op = Op.parse(name)
    if op.kind == "batch_matmul":
        kn = {"nt": 0, "nn": 1, "tn": 2}["".join(op.option("layout")) or "nn"]
        return packed_product(op.name, (one_of("cuda_batched_simt_fp32", kn=kn),))
    one = CudaEntry(regions=((0, 0),))
    split = CudaEntry(regions=((0, 0),), splits=2)
    return packed_op(op.name, (one_of("cuda_simt_fp32"),), ((4, split), (200, one)))


def one_of(name: str, **more: int) -> MicroKernel:
    """A kernel of the family that takes any alignment."""
    found: Any = next(one for one in (*CUDA_FAMILIES, *BATCHED_FAMILIES) if one.name == name)
    kernel: MicroKernel = found.kernel(**TILE, **more)
    return kernel


def model_pack(out: Path, arch: str, code: Path, name: str = "encoder") -> Path:
    """A pack of one of the graphs, its code below ``code`` as the code cache leaves it."""
    graph = GRAPHS[name]()
    steps = Exact(graph, Prices([{"batch": 2, "seq": size} for size in (3, 60)]), serves=serves).steps
    model = written(name, graph, steps, on_device=True)
    ops = [packed(one) for one in dict.fromkeys(Op.parse(step.op).name for step in steps if isinstance(step, Product))]
    kernels = {kernel.name: (family(kernel), kernel) for op in ops for kernel in op.micro_kernels}
    code.mkdir(parents=True, exist_ok=True)
    unit = code / f"{name}.cu"
    unit.write_text(device_unit(kernels, reduces=("fp32",)))
    cubin = cubin_of(unit, code, arch).read_bytes()
    groups = GroupSources(c=source_of([model]), device=device_source_of([model]), launches=model.functions, cache=code)
    library = out.with_suffix(".so")

    def compiled(kernels: Sequence[MicroKernel], arch: str, to: Path) -> None:
        to.write_bytes(cubin)

    told = pack_library(ops, arch, toolchain(), library, compiled, groups)
    ranges = {name: {dim: [1, LAST] for dim in model.document["dims"]}}
    told = document(ops, arch) | told | {"tuning": {"model_ranges": ranges}}
    write_pack(out, library, told, lambda _: None, {name: (model.schedule, model.weights)})
    library.unlink()
    return out
