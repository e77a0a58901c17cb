"""``torch.compile(model, backend="haotuner")``: layers that a pack holds are served from it, the rest goes to Inductor.

The entry point ``torch_dynamo_backends`` names ``backend``. Options::

    torch.compile(model, backend="haotuner", dynamic=True, options={"pack": "pack", "tune": "zero"})

``pack``: a folder that ``haotuner tune`` wrote. ``tune``: what happens without one: ``"zero"`` (as without options) makes a
pack from predictions in the cache folder, a time such as ``"15s"`` measures for as long, None makes none. All others, and
``mode=``, are Inductor's.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from haotuner.errors import HaotunerError, UsageError
from haotuner.pack.folder import MANIFEST
from haotuner.runtime.pack import Pack, reservations
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from haotuner.torch.cached_pack import ZERO, tuned_pack, tuning_s
from haotuner.torch.layer_calls import Graph, LayerCall, rewrite
from haotuner.torch.ops import Registered
from haotuner.torch.packed_weights import PackedWeights

LOG = logging.getLogger("haotuner.torch")
ROWS_MOST = 2048  # of a product whose rows are dynamic, as `--shapes dynamic` has it
BATCH_MOST = 8  # images of a convolution whose batch is dynamic
SHAPES_AN_AXIS = 3  # of a convolution's dynamic axis
Compiled = Callable[..., Any]


def backend(
    module: torch.fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Compiled:
    """The compiled function of a graph of dynamo.

    Raises:
        UsageError: an option has no meaning.
    """
    rest = dict(options or {})
    path, tune = rest.pop("pack", None), rest.pop("tune", ZERO)
    seconds = tuning_s(tune)
    if path is not None and not isinstance(path, str | os.PathLike):
        raise UsageError(f"pack={path!r}: name the folder that `haotuner tune --out` wrote")
    settings = {**(torch._inductor.list_mode_options(mode) if mode else {}), **rest}
    graph = Graph(module, inputs)
    calls = list(graph.calls()) if _infers(inputs) else []
    for name, reason in graph.left.items():
        LOG.warning("haotuner: %s goes to Inductor: %s", name, reason)
    if not calls:
        return _inductor(module, inputs, settings)
    try:
        weights = _weights_of(calls, path, seconds)
    except HaotunerError as error:
        LOG.warning("haotuner: %s; Inductor serves the model", error)
        weights = None
    if weights is None:
        return _inductor(module, inputs, settings)
    names = weights.registered.names
    ops = [_op_of(call, names) for call in calls]
    served = [(call, op) for call, op in zip(calls, ops, strict=True) if op is not None]
    missing = [call for call, op in zip(calls, ops, strict=True) if op is None]
    LOG.info("haotuner: %d of %d layer calls are served from %s", len(served), len(calls), weights.registered.pack.path)
    if missing:
        specs = sorted({call.plain[0][0] for call in missing})
        LOG.warning(
            "haotuner: %d of %d layer calls go to Inductor, for %s does not hold their ops: tune it with --op %s",
            len(missing), len(calls), weights.registered.pack.path, " --op ".join(specs[:4]),
        )  # fmt: skip
    return _served(graph, served, weights, settings) if served else _inductor(module, inputs, settings)


def _infers(inputs: Sequence[Any]) -> bool:
    """True if nothing is to be differentiated and no autocast changes types; a pack only infers."""
    graded = [tensor for tensor in inputs if isinstance(tensor, torch.Tensor) and tensor.requires_grad]
    if torch.is_grad_enabled() and graded:
        LOG.warning(
            "haotuner: torch records gradients here, so Inductor serves the model; call it under torch.inference_mode()"
        )
        return False
    if torch.is_autocast_enabled("cpu"):
        LOG.warning("haotuner: the call is under autocast, so Inductor serves the model; give the model its type instead")
        return False
    return True


def _weights_of(calls: Sequence[LayerCall], path: Any, seconds: float | None) -> PackedWeights | None:
    """Weights for the pack of these calls; None where there is none and none is to be tuned."""
    threads = torch.get_num_threads()
    if path is None:
        if seconds is None:
            LOG.warning("haotuner: no pack= and tune=None, so Inductor serves the model")
            return None
        traces: dict[str, dict[Shape, None]] = {}
        for call in calls:
            traces.setdefault((call.fused or call.plain)[0][0], {}).update(dict.fromkeys(_shapes(call)))
        path = tuned_pack({spec: list(shapes) for spec, shapes in traces.items()}, threads, seconds, os.environ, LOG.warning)
        return _opened(str(path), _identity(Path(path)), threads)
    folder = Path(path).resolve()
    return _with_reservations(str(folder), _identity(folder), threads)


def _identity(path: Path) -> str:
    """Digest of a pack's manifest, which has those of all its files; empty where there is none."""
    try:
        return hashlib.sha256((path / MANIFEST).read_bytes()).hexdigest()[:12]
    except OSError:
        return ""


@cache
def _with_reservations(path: str, identity: str, threads: int) -> PackedWeights:
    """``_opened`` of a pack that the caller named; what is to be known of it goes to the log, once a process."""
    weights = _opened(path, identity, threads)
    for words in reservations(weights.registered.pack.manifest, on_cpu=True):
        LOG.warning("haotuner: %s: %s", path, words)
    return weights


@cache
def _opened(path: str, identity: str, threads: int) -> PackedWeights:
    """An open pack with its ops in a namespace of its own: names of ops are the process's, and packs share names."""
    return PackedWeights(Registered(Pack(path, threads), f"haotuner_{identity}_{threads}"))


class ServingOp(NamedTuple):
    """Op of a pack that serves a call; whether its images have channels last, and whether it computes the activation."""

    name: str
    last: bool
    fused: bool


def _op_of(call: LayerCall, names: Sequence[str]) -> ServingOp | None:
    for specs, fused in ((call.fused, True), (call.plain, False)):
        for spec, last in specs:
            name = Op.parse(spec).name
            if name in names:
                return ServingOp(name, last, fused)
    return None


def _shapes(call: LayerCall) -> list[Shape]:
    """Shapes to tune for: of a static extent its own, of a dynamic one a range around it."""
    axes = {name: _extents(name, extent, len(call.shape)) for name, extent in call.shape.items()}
    return [Shape.of(dict(zip(axes, extents, strict=True))) for extents in itertools.product(*axes.values())]


def _extents(axis: str, extent: Any, axes: int) -> list[int]:
    if isinstance(extent, int):
        return [extent]
    hint = int(extent.node.hint or 1)
    above = 1 << max(hint - 1, 1).bit_length()  # the next power of two: sizes near one another have one pack
    if axes == 1:
        return [1 << power for power in range(max(above, ROWS_MOST).bit_length())]
    if axis == "b":
        return sorted({1, max(above, BATCH_MOST)})
    return sorted({max(above // 4, 1), above // 2, above})[-SHAPES_AN_AXIS:]


def _served(
    graph: Graph, served: Sequence[tuple[LayerCall, ServingOp]], weights: PackedWeights, settings: Mapping[str, Any]
) -> Compiled:
    """The graph with its served calls as ops of the pack, whose packed weights are further inputs."""
    module, inputs, more = graph.module, list(graph.inputs), list[torch.Tensor]()
    pairs = [(op.name, call) for call, op in served]
    for call, op in served:
        packed, row = weights.of(op.name, call, inputs)
        operator = getattr(weights.registered.namespace, op.name).default
        rewrite(graph, call, operator, has_row=row is not None, last=op.last, fused=op.fused)
        more += [packed] if row is None else [packed, row]
    module.graph.lint()
    module.recompile()
    operators = {getattr(weights.registered.namespace, name).default for name, _ in pairs}
    if all(node.target in operators for node in module.graph.nodes if node.op not in ("placeholder", "output")):
        compiled: Compiled = module.forward  # nothing is left for Inductor
    else:
        mode = torch._guards.TracingContext.get().fake_mode
        fakes = [mode.from_tensor(tensor, static_shapes=True) for tensor in more]
        compiled = _inductor(module, [*inputs, *fakes], settings)
    return weights.followed(compiled, pairs, inputs)


def _inductor(module: torch.fx.GraphModule, inputs: Sequence[Any], settings: Mapping[str, Any]) -> Compiled:
    from torch._inductor.compile_fx import compile_fx

    compiled: Compiled = compile_fx(module, list(inputs), config_patches=dict(settings) or None)
    return compiled
