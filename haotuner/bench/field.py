"""Field: who races on a kind of device, what can be raced there, and what must stand still meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from haotuner.bench import any_op, groups, images, products
from haotuner.bench.contender import MACHINE_SPEC
from haotuner.bench.rotation import Rotation, cold, resting
from haotuner.errors import UsageError
from haotuner.spec.cold import CPU_CACHES, GPU_CACHES
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

DENSE, CONVOLUTION, PRODUCT, GROUPED, ANY = "dense", "convolution", "batch_matmul", "grouped", "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Contenders are ``module:Class`` by name, imported only inside their own processes."""

    peers: Mapping[str, str]
    ours: str
    dtypes: tuple[str, ...]
    caches: int  # last-level caches full of weights that make them cold
    machine: str | None = None  # times the machine's own arithmetic
    on_host: bool = True  # computes on the host's cores, whose other load spoils times
    product_peers: Mapping[str, str]  # of batch_matmul
    our_products: str
    group_peers: Mapping[str, str] = field(default_factory=dict)  # of grouped, where it is raced at all
    our_groups: str = ""
    any_peers: Mapping[str, str]  # of any op
    our_any: str

    def side(self, op: Op) -> str:
        """Which contenders the op has here: those of layers and products ("dense", "batch_matmul", …) or of any op ("any").

        Empty where nobody is set up for it. Dense without epilogue, weight (n, k), a dynamic m; batch_matmul; on the host
        convolutions (``images.raceable``); on GPUs grouped products (``groups.raceable``); else ``any_op.raceable``, on GPUs
        in the types of the field alone.
        """
        known = op.dtype in self.dtypes
        if self.our_groups and groups.raceable(op):
            return GROUPED if known else ""
        if self.on_host and images.raceable(op):
            return CONVOLUTION
        if products.raceable(op) and (op.plain or not self.on_host):
            return PRODUCT
        if op.kind == "dense" and known and not op.options and not op.epilogue and op.dynamic == ("m",):
            return DENSE
        return ANY if (known or self.on_host) and any_op.raceable(op) else ""

    def raceable(self, op: Op) -> bool:
        """True if peers are set up for the op."""
        return bool(self.side(op))

    def can_be_cold(self, op: Op) -> bool:
        """Whether calls may take many weights, or what rests, in turn; on GPUs those of contenders of their own."""
        return self.side(op) in (DENSE, CONVOLUTION, GROUPED) or (self.on_host and bool(resting(op)))

    def cold(self, op: Op, shape: Shape, cache_bytes: int) -> Rotation:
        """The rotation over cold weights, or operands that rest, beside a last-level cache of so many bytes.

        Peers of plain layers keep nothing beside a weight; Inductor compiles a graph for every number of them.
        """
        crowded = self.on_host and self.side(op) != DENSE
        return cold(op, shape, self.caches * cache_bytes, crowded=crowded, evicts=self.on_host)

    @property
    def what(self) -> str:
        """What can be raced, in words."""
        types = "" if self.on_host else f" in {', '.join(self.dtypes)}"
        return f"ops with a dynamic axis{types}, of the kinds {', '.join(any_op.KINDS)}, and convolutions"

    def entrants(self, ops: Sequence[Op], names: Sequence[str] | None) -> tuple[str, dict[str, str]]:
        """Ours, and of the peers of these names (None: of all) those that are set up for the side of these ops."""
        sides = {self.side(op) for op in ops}
        ours, peers = self.ours, dict(self.peers)
        if PRODUCT in sides:
            ours, peers = self.our_products, dict(self.product_peers)
        elif GROUPED in sides:
            ours, peers = self.our_groups, dict(self.group_peers)
        elif ANY in sides:
            ours, peers = self.our_any, dict(self.any_peers)
        elif CONVOLUTION in sides:
            peers = {name: spec for name, spec in peers.items() if name in images.PEERS}
        requested = peers if names is None else self.named(names)
        return ours, {name: peers[name] for name in requested if name in peers}

    def named(self, names: Sequence[str] | None) -> dict[str, str]:
        """The peers of these names with where to find them; None is everybody. UsageError on a name nobody has."""
        if names is None:
            return dict(self.peers)
        alone = {name: spec for name, spec in self.group_peers.items() if name not in self.peers}
        known = {**self.peers, **alone}
        unknown = sorted(set(names) - set(known))
        if unknown:
            raise UsageError(f"--peers {','.join(unknown)}: no such peer; known are {', '.join(known)}")
        return {name: known[name] for name in dict.fromkeys(names)}


HOST = Field(
    peers={
        "torch": "haotuner.bench.peers.torch_eager:TorchEager",
        "onednn": "haotuner.bench.peers.onednn_packed:OnednnPacked",
        "openvino": "haotuner.bench.peers.openvino_cpu:OpenvinoCpu",
        "onnxruntime": "haotuner.bench.peers.onnxruntime_cpu:OnnxruntimeCpu",
        "inductor": "haotuner.bench.peers.inductor_max:InductorMax",
        "zentorch": "haotuner.bench.peers.zentorch_packed:ZentorchPacked",
        "numpy": "haotuner.bench.peers.numpy_blas:NumpyBlas",
    },
    ours="haotuner.bench.peers.ours:Ours",
    product_peers=products.PEERS,
    our_products=products.OURS,
    any_peers=any_op.PEERS,
    our_any=any_op.OURS,
    dtypes=("fp32", "fp16", "bf16", "int8"),
    caches=CPU_CACHES,
    machine=MACHINE_SPEC,
)
GPU = Field(
    peers={
        "torch": "haotuner.bench.peers.gpu_torch:GpuTorch",
        "cublaslt": "haotuner.bench.peers.gpu_cublaslt:CublasLt",
        "cublaslt16": "haotuner.bench.peers.gpu_cublaslt:CublasLtBest",
        "triton": "haotuner.bench.peers.gpu_triton:GpuTriton",
        "inductor": "haotuner.bench.peers.gpu_inductor:GpuInductor",
    },
    ours="haotuner.bench.peers.gpu_ours:GpuOurs",
    product_peers={"torch": "haotuner.bench.peers.gpu_products:GpuTorchProducts"},
    our_products="haotuner.bench.peers.gpu_products:GpuOurProducts",
    group_peers=groups.PEERS,
    our_groups=groups.OURS,
    any_peers=any_op.GPU_PEERS,
    our_any=any_op.OUR_GPU,
    dtypes=("fp32", "fp16", "bf16"),
    caches=GPU_CACHES,
    on_host=False,
)
PEERS = tuple(dict.fromkeys((*HOST.peers, *GPU.peers)))


def field_of(ordinal: int | None) -> Field:
    """Of the host (None), or of a GPU by its number."""
    return HOST if ordinal is None else GPU
