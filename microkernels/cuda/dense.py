"""Base of the CUDA dense families: Y[m, n] = X[m, k] · W[n, k]^T, every extent known at run time.

A micro-kernel is one thread block's ``bm x bn`` tile of Y, walked along k in steps of ``bk``; with ``splits`` > 1 a block
walks its share of the steps only. A program is a TVM function ``symbol(X, W)`` that ends in a call of the epilogue
(``device/epilogue.cuh``); the compiled kernel takes ``ht_cuda_args`` (``launch.py``). X (m, k) and Y (m, n) have inner
stride 1 and any row stride, W (n, k), or (k, n) for ``kn1``, is compact. ``kn2``, of batches: X is (k, m), too. ``v``
promises that k and X's row stride (for ``kn1`` also n, for ``kn2`` m) are multiples of v and that X and W start at multiples
of v elements; every family pads with zeros, so no other extent is restricted. Offsets into X and W are 32-bit
(``launch.OPERAND_ELEMENTS``). ``ep`` is a build for the steps of an epilogue (``fused.py``).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from haotuner.microkernels.cuda import dense_demand
from haotuner.microkernels.cuda.dense_demand import Step
from haotuner.microkernels.cuda.fused import fused, stepped, steps_of
from haotuner.microkernels.cuda.launch import Launch, Map
from haotuner.ops.dtypes import DTYPE_BYTES
from haotuner.spec.constraint import Laws
from haotuner.spec.demand import Demand, DemandQuery, Expectation
from haotuner.spec.device import Device
from haotuner.spec.family import Layout, rounded_up
from haotuner.spec.kernel import Footprint, MicroKernel, Tile
from haotuner.spec.op import Op
from haotuner.spec.traffic import Traffic

# Each of an SM's four schedulers owns 16384 32-bit registers, on every architecture from sm_70 on (CUDA programming guide,
# technical specifications): a register budget is met per scheduler, in whole warps.
SCHEDULERS = 4
SCHEDULER_REGISTERS = 16384
REGISTER_STEP = 8  # registers are handed to a warp in multiples of 8 per thread
REGISTER_LIMIT = 255  # of one thread
# No estimate goes below it: 1024 threads of 64 registers fill an SM, more than an SM of sm_75 can hold and enough to hide
# any latency, so a tighter budget would only cause spills.
REGISTER_FLOOR = 64
# Of a kernel of groups, or of a batch: pointers, rows and the block's number are its own, no longer constants of the launch;
# with fewer ptxas spills in tight tiles.
GROUP_REGISTERS = 16
WARP = 32
OLDEST_BUILT = 75  # what a CUDA 13 toolkit still builds for; before it a CUDA 12 one must be found
WINDOWS = ("", "last", "first", "phases")  # by their numbers in a launch
TVM_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8"}


def sm_number(arch: str) -> int:
    """90 for ``sm_90a``, 0 for what is no CUDA architecture."""
    match = re.fullmatch(r"sm_([0-9]+)[a-z]?", arch)
    return int(match[1]) if match else 0


def stored_kn(op: Op) -> int:
    """1 where W lies as (k, n), 2 where X lies as (k, m) as well, by the option of its kind; else 0."""
    if op.kind == "batch_matmul":
        return {"nt": 0, "nn": 1, "tn": 2}[op.option("layout")]
    return int(op.option("weight") == "kn")


def vector_elements(op: Op, widest: int) -> int:
    """The largest power of two up to ``widest`` that the op's static extents let a load rely on; 1 if k is dynamic."""
    static = dict(op.static)
    result = widest
    while result > 1 and any(static.get(axis, 1) % result for axis in (("k",), ("k", "n"), ("k", "n", "m"))[stored_kn(op)]):
        result //= 2
    return result


def resident_blocks(threads: int, registers: int) -> int:
    """Blocks whose registers fit an SM together; the launch bound that holds the compiler to ``registers`` a thread."""
    warps = SCHEDULERS * (SCHEDULER_REGISTERS // (WARP * registers))
    return max(1, warps * WARP // threads)


def rounded_registers(registers: int) -> int:
    """An estimate as the hardware hands registers out, within the floor and the limit of a thread."""
    return min(max(-(-registers // REGISTER_STEP) * REGISTER_STEP, REGISTER_FLOOR), REGISTER_LIMIT)


class CudaDense(ABC):
    """One CUDA dense family; a subclass says its points, footprint and program."""

    backend = "cuda"
    frontier = 256  # four minutes of nvcc on two cores
    device: tuple[str, ...] = ("prelude", "result", "epilogue")  # texts of device/ that the programs call
    oldest_sm = 0  # that has the instructions; 0: any GPU multiplies and adds in fp32

    def __init__(
        self,
        name: str,
        dtype: str,
        *,
        grouped: bool = False,
        batched: bool = False,
        signs: str = "us",
        windows: str = "",
        phased: bool = False,
    ) -> None:
        """``grouped``: of the same tiles, but the rows of X come in groups, each with a matrix of its own.

        ``batched``: products side by side, of matrices and rows at any strides. ``signs``: of bytes, u or s of X and of W.
        ``windows``: of these, X is what windows of images see whose channels are ``last``, read where it lies
        (``device/windows.cuh``); of those whose channels are ``first`` W is. ``phased``: windows of transposed convolutions,
        one for each residue of the results' places (``device/phases.cuh``).
        """
        self.name = name
        self.dtype = dtype
        self.grouped = grouped
        self.batched = batched
        self.signs = signs
        self.windows = windows
        self.phased = phased

    def serves(self, op: Op) -> bool:
        """Its kind of product, of this dtype with something left to know at run time.

        It may have any epilogue (``fused.py``); products side by side one of steps that read nothing, for what they read
        comes with the call.
        """
        kind = "batch_matmul" if self.batched else "grouped" if self.grouped else "dense"
        return (
            op.kind == kind
            and not self.windows
            and op.dtype == self.dtype
            and self.signs == ("ss" if op.option("in") == "int8" else "us")
            and fused(op) is not None
            and not (self.batched and op.epilogue_operands)
            and bool(op.dynamic)
        )

    def takes(self, op: Op) -> bool:
        """True if the programs multiply operands of this k that lie as the op's do."""
        return True

    def suits(self, device: Device) -> bool:
        """True if the device has the instructions that the programs use; enough to select and predict for it."""
        return device.kind != "cpu" and sm_number(device.arch) >= self.oldest_sm

    @property
    def least_step(self) -> int:
        """The shortest step along k, in elements."""
        return 1

    def runs_on(self, device: Device) -> bool:
        """True if code can be built for the device as well."""
        return self.suits(device) and sm_number(device.arch) >= OLDEST_BUILT

    def points(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """The search space for an op, the same on every device; :meth:`runs_on` says whether it is of use there."""
        every = self.programs(op, device)
        steps = steps_of(op)
        return (stepped(item, steps) for item in every)

    @abstractmethod
    def programs(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """The search space of an op without steps."""

    @abstractmethod
    def footprint(self, kernel: MicroKernel) -> Footprint:
        """Registers a thread is held to, shared memory and threads of one block."""

    @abstractmethod
    def ahead(self, kernel: MicroKernel) -> int:
        """Steps along k whose operands are on their way while one step is computed."""

    def tail(self, kernel: MicroKernel) -> float:
        """Nothing beside the epilogue follows the last step."""
        return 0.0

    @abstractmethod
    def near_bytes(self, kernel: MicroKernel) -> int:
        """Bytes that one block reads from shared memory for one element of k."""

    @abstractmethod
    def step(self, kernel: MicroKernel) -> Step:
        """Instructions of one warp for one element of k, and what a thread holds of Y."""

    def peak_share(self, device: Device) -> float:
        """Share of the units' peak that the family's instructions can reach."""
        return 1.0

    @abstractmethod
    def schedule(self, kernel: MicroKernel, symbol: str) -> Any:
        """TVM module with one function ``symbol(X, W)``."""

    def tile(self, kernel: MicroKernel) -> Tile:
        """A block's tile; what lies over the edges is masked."""
        extent = {**({"b": 1} if self.batched else {}), "m": kernel["bm"], "n": kernel["bn"]}
        return Tile(extent=extent, edge=dict.fromkeys(extent, "masked"), step={"k": kernel["bk"]})

    def maps(self, kernel: MicroKernel) -> tuple[Map, ...]:
        """Tensor maps that the kernel reads its operands through."""
        return ()

    def launch(self, kernel: MicroKernel) -> Launch:
        """Launch of the kernel, as the host must know it."""
        tile, footprint = self.tile(kernel), self.footprint(kernel)
        return Launch(
            tile_m=tile.extent["m"],
            tile_n=tile.extent["n"],
            threads=footprint.threads,
            shared_bytes=footprint.shared_bytes,
            vector=self.vector(kernel),
            maps=self.maps(kernel),
            splits=not (self.grouped or self.batched),
            groups=self.grouped,
            batch=self.batched,
            windows=WINDOWS.index("phases" if self.phased else self.windows),
            across=kernel["kn"] == 2,
        )

    def registers(self, estimate: int) -> int:
        """Registers a thread is held to, of those that the tile wants."""
        return rounded_registers(estimate + (GROUP_REGISTERS if self.grouped or self.batched else 0))

    def vector(self, kernel: MicroKernel) -> int:
        """Elements of a load: extents and strides of the operands must be multiples of it."""
        return kernel["v"]

    def reads_kn(self, kernel: MicroKernel) -> bool:
        """True if W is stored as (k, n) instead of (n, k)."""
        return bool(kernel["kn"])

    def computed(self, kernel: MicroKernel, axis: str, extent: int) -> int:
        """Whole tiles."""
        return rounded_up(self.tile(kernel), axis, extent)

    def layout(self, kernel: MicroKernel) -> Layout:
        """W is read as it is stored."""
        return ()

    def laws(self, op: Op, device: Device) -> Laws:
        """Whole memory transactions, and tiles that the op and its traffic can fill."""
        return dense_demand.LAWS

    def demand(self, requested: DemandQuery) -> Demand:
        """See ``dense_demand``."""
        of = dense_demand.grouped if self.grouped else dense_demand.batched if self.batched else dense_demand.demand
        return of(requested, self)

    def expectation(self, op: Op, device: Device, traffic: Traffic) -> Expectation | None:
        """None: the roofline of ``haotuner/cost`` and what is learned rank them."""
        return None

    def bytes_per_element(self) -> int:
        """Size of one element of X and W."""
        return DTYPE_BYTES[self.dtype]

    def packed(self, kernel: MicroKernel) -> int:
        """Elements of k that the program takes as one: its k and row strides are that much less than the launch's."""
        return 1


def module_of(program: Any, symbol: str) -> Any:
    """TVM module that holds one program under a global symbol."""
    import tvm

    return tvm.IRModule({symbol: program.with_attr("global_symbol", symbol)})
