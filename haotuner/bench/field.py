"""Field: contenders on a kind of device, ops that can be raced there, and what must stand still meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from haotuner.bench.contender import MACHINE_SPEC
from haotuner.bench.operands import KINDS, plain_convolution, plain_groups, plain_layer, plain_product, raceable
from haotuner.bench.rotation import Rotation, cold, resting
from haotuner.errors import UsageError
from haotuner.spec.cold import CPU_CACHES, GPU_CACHES
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

EXPERTS = "torch_grouped"  # races on products of groups of rows alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Contenders are ``module:Class`` by name, imported only inside their own processes.

    ``only``: of a peer that is not set up for any op, what it is set up for. In which types, it says itself.
    """

    peers: Mapping[str, str]
    only: Mapping[str, Callable[[Op], bool]] = field(default_factory=dict)
    ours: str
    dtypes: tuple[str, ...] = ()  # that are raced; empty: all
    caches: int  # last-level caches full of weights that make them cold
    machine: str | None = None  # times the machine's own arithmetic
    on_host: bool = True  # computes on the host's cores, whose other load spoils times

    def raceable(self, op: Op) -> bool:
        """True if peers are set up for the op: on GPUs in the types of the field, and grouped products too."""
        known = not self.dtypes or op.dtype in self.dtypes
        return known and (raceable(op) or (not self.on_host and plain_groups(op)))

    def peers_of(self, op: Op) -> tuple[str, ...]:
        """Names of the peers that are set up for the op."""
        known = self.only.get
        return tuple(name for name in self.peers if (takes := known(name)) is None or takes(op))

    def can_be_cold(self, op: Op) -> bool:
        """True if calls may take many weights, or what rests, in turn; on GPUs those of plain layers and of experts."""
        return bool(resting(op)) if self.on_host else plain_layer(op) or plain_groups(op)

    def cold(self, op: Op, shape: Shape, cache_bytes: int) -> Rotation:
        """The rotation over cold weights, or operands that rest, beside a last-level cache of so many bytes.

        Peers of plain layers keep nothing beside a weight; Inductor compiles a graph for every number of them.
        """
        crowded = self.on_host and not plain_layer(op)
        return cold(op, shape, self.caches * cache_bytes, crowded=crowded, evicts=self.on_host)

    @property
    def what(self) -> str:
        """Ops that can be raced, in words."""
        types = f" in {', '.join(self.dtypes)}" if self.dtypes else ""
        return f"ops with a dynamic axis{types}, of the kinds {', '.join(KINDS)}, and convolutions"

    def entrants(self, ops: Sequence[Op], names: Sequence[str] | None) -> dict[str, str]:
        """Of the peers of these names (None: of all) those that are set up for all of these ops."""
        return {name: spec for name, spec in self.named(names).items() if all(name in self.peers_of(op) for op in ops)}

    def named(self, names: Sequence[str] | None) -> dict[str, str]:
        """The peers of these names with where to find them; None is everybody. UsageError on a name nobody has."""
        if names is None:
            return dict(self.peers)
        unknown = sorted(set(names) - set(self.peers))
        if unknown:
            raise UsageError(f"--peers {','.join(unknown)}: no such peer; known are {', '.join(self.peers)}")
        return {name: self.peers[name] for name in dict.fromkeys(names)}


def _layer_or_convolution(op: Op) -> bool:
    return plain_layer(op) or plain_convolution(op)


def _layer_or_product(op: Op) -> bool:
    return plain_layer(op) or plain_product(op)


def _not_of_groups(op: Op) -> bool:
    return op.kind != "grouped"


_AT = "haotuner.bench.peers"
HOST = Field(
    peers={
        "torch": f"{_AT}.torch_cpu:Torch",
        "onednn": f"{_AT}.torch_cpu:OnednnPacked",
        "openvino": f"{_AT}.onnx_files:Openvino",
        "onnxruntime": f"{_AT}.onnx_files:Onnxruntime",
        "inductor": f"{_AT}.torch_cpu:Inductor",
        "zentorch": f"{_AT}.torch_cpu:ZentorchPacked",
        "numpy": f"{_AT}.numpy_blas:NumpyBlas",
    },
    only={"onednn": _layer_or_convolution, "zentorch": plain_layer, "numpy": _layer_or_product},
    ours=f"{_AT}.ours:Ours",
    caches=CPU_CACHES,
    machine=MACHINE_SPEC,
)
GPU = Field(
    peers={
        "torch": f"{_AT}.gpu_torch:GpuTorch",
        "cublaslt": f"{_AT}.gpu_cublaslt:CublasLt",
        "cublaslt16": f"{_AT}.gpu_cublaslt:CublasLtBest",
        "triton": f"{_AT}.gpu_triton:GpuTriton",
        "inductor": f"{_AT}.gpu_torch:GpuInductor",
        EXPERTS: f"{_AT}.gpu_torch:GpuTorchGroupedMm",
    },
    only={
        "cublaslt": plain_layer,
        "cublaslt16": plain_layer,
        "triton": plain_layer,
        "inductor": _not_of_groups,
        EXPERTS: plain_groups,
    },
    ours=f"{_AT}.ours:GpuOurs",
    dtypes=("fp32", "fp16", "bf16"),
    caches=GPU_CACHES,
    on_host=False,
)
PEERS = tuple(name for name in dict.fromkeys((*HOST.peers, *GPU.peers)) if name != EXPERTS)  # of most ops


def field_of(ordinal: int | None) -> Field:
    """Of the host (None), or of a GPU by its number."""
    return HOST if ordinal is None else GPU
