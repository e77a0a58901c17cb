"""Packs with whole models, built without tuning: graphs through the greedy plan, real loops, made-up plans of products."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from haotuner.backends.cpu.pack_source import pack_library
from haotuner.graph.extents import dimension, product
from haotuner.graph.graph import Graph
from haotuner.pack.write import write_pack
from haotuner.partition.costs import Prices
from haotuner.partition.executable import ExecutableModel, executable_chain, executable_specializations, source_of
from haotuner.partition.greedy_fusion import Greedy, Specialization
from haotuner.partition.ilp_partition import IlpPartitioner
from haotuner.partition.products import Product
from haotuner.partition.segments import chained, cut, data_dimensions, flattened
from haotuner.spec.op import Op
from tests.run_folder import toolchain
from tests.runtime.conv_packs import packed_conv
from tests.runtime.native_builds import content_of
from tests.runtime.online_packs import online_op
from tests.runtime.packs import LANES, best_level, document, packed_op
from tests.runtime.product_packs import packed_product
from tests.runtime.typed_packs import typed_op

LAST = 512  # of every dimension
ANY = "dense:n=16,k=16"  # a pack holds an op at least


def planned(
    graphs: dict[str, Graph],
    lanes: int,
    *,
    tuned: bool = True,
    exact: bool = True,
    small: int = 0,
    forms: Mapping[str, Graph] = MappingProxyType({}),
) -> tuple[list[ExecutableModel], list[ExecutableModel], list[Any]]:
    """The models of these graphs, segments each by itself; how those are gone through; the ops that they call.

    ``small``: up to this product of their dimensions a way of its own, by the exact plan, of the graph itself or of one in
    another form.
    """
    models, chains = list[ExecutableModel](), list[ExecutableModel]()
    ops: dict[str, None] = {Op.parse(ANY).name: None}
    for name, graph in graphs.items():
        segments, parts = cut(graph), list[ExecutableModel]()
        names = (*graph.dimensions, *data_dimensions(graph))
        for index, segment in enumerate(flattened(segments)):
            if segment.graph is None:
                continue
            prices = Prices([dict.fromkeys(names, size) for size in (3, 60)])
            steps = (
                IlpPartitioner(segment.graph, prices, tuned=tuned) if exact else Greedy(segment.graph, tuned=tuned)
            ).steps
            ops |= {step.op.name: None for step in steps if isinstance(step, Product)}
            first = sum(len(model.functions) for model in (*models, *parts))
            ways = [Specialization(tuple(steps))]
            if small:
                form = forms.get(name)
                own = IlpPartitioner(form or segment.graph, prices, tuned=tuned).steps
                ops |= {step.op.name: None for step in own if isinstance(step, Product)}
                most = product(map(dimension, segment.graph.dimensions))
                ways = [Specialization(own, most, small, form), *ways]
            parts.append(
                executable_specializations(f"{name}.{index}" if chained(segments) else name, segment.graph, ways, first)
            )
        models += parts
        if chained(segments):
            chains.append(executable_chain(name, graph, segments, parts))
    return (
        models,
        chains,
        [_packed(name, lanes) for name in ops],
    )


def _packed(name: str, lanes: int) -> Any:
    """An op with plans that nobody tuned: an attention, a product of bytes, a convolution, or a dense layer."""
    if name.startswith("attention"):
        return online_op(name)
    if name.startswith("conv"):
        return packed_conv(name, lanes)
    if name.startswith("batch_matmul"):
        return packed_product(name, lanes)
    if Op.parse(name).dtype == "int8":
        return typed_op(name, lanes)
    return packed_op(name, lanes, lanes, (1, 2))


def model_pack(
    out: Path,
    graphs: dict[str, Graph],
    *,
    tuned: bool = True,
    exact: bool = True,
    small: int = 0,
    level: str = "",
    forms: Mapping[str, Graph] = MappingProxyType({}),
    sources: Mapping[str, str] = MappingProxyType({}),
    subgraphs: Collection[str] = (),
    times: Mapping[str, list[dict[str, Any]]] = MappingProxyType({}),
) -> Path:
    """A pack that serves these graphs at a level, the best unless told; products are layers, or loops without ``tuned``.

    ``sources``: SHA-256 of models' files, by name. ``subgraphs``: models that are parts of these files. ``times``: expected
    times by model, as documents of ``ExpectedTable``.
    """
    level = level or best_level()
    models, chains, packed = planned(graphs, LANES[level], tuned=tuned, exact=exact, small=small, forms=forms)
    models = [
        replace(model, document={**model.document, "expected": times[model.name]}) if model.name in times else model
        for model in models
    ]
    library = out.with_suffix(".so")
    pack_library(packed, level, toolchain(), library, groups=source_of([*models, *chains]))
    models_by_name = {model.name: model for model in (*models, *chains)}
    ranges = {name: {dim: [1, LAST] for dim in model.document["dims"]} for name, model in models_by_name.items()}
    manifest = document(packed, level) | {"tuning": {"model_ranges": ranges}}
    contents = {
        name: content_of(model)._replace(source_sha256=sources.get(name, ""), is_subgraph=name in subgraphs)
        for name, model in models_by_name.items()
    }
    write_pack(out, library, manifest, lambda _: None, contents)
    library.unlink()
    return out
