"""What is replayed, in plain words. A quick case is part of every test run, the others of `python -m tests.replay`."""

from __future__ import annotations

from dataclasses import dataclass

DEVICES = tuple(f"cpu-amd-epyc-{core}-{isa}" for core in ("f25m17", "f26m2") for isa in ("sse", "avx2", "avx512"))
SIZES = ((320, 480), (640, 2048), (1024, 1024), (1536, 384), (2560, 640), (1000, 1500))
OPS = tuple(f"dense_n{n}_k{k}" for n, k in SIZES)
ENDLESS = 10**9


@dataclass(frozen=True, kw_only=True)
class Case:
    """One op tuned on the records of one device."""

    device: str
    op: str
    shapes: str = "m=1..2048"
    threads: tuple[int, ...] = (1, 2)
    weights: str = "cold"
    seed: int = 0
    cold: bool = False  # no model from elsewhere to start with
    resumed: bool = False  # some of the records are there before
    one_order: bool = False
    stop_after: int = ENDLESS  # times that the watcher is asked; then it stops the run

    @property
    def name(self) -> str:
        """In words."""
        parts = [self.device.removeprefix("cpu-amd-epyc-"), self.op, self.shapes, self.weights]
        parts += [f"seed {self.seed}"] if self.seed else []
        parts += [word for word in ("cold", "resumed", "one_order") if getattr(self, word)]
        return " ".join([*parts, *([f"stopped after {self.stop_after}"] if self.stop_after < ENDLESS else [])])


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What is predicted."""

    device: str
    op: str
    rows: tuple[int, ...] = (1, 2, 7, 32, 250, 2048)
    kernels: int = 40
    weights: str = "cold"
    threads: int = 1

    @property
    def name(self) -> str:
        """In words."""
        return f"{self.device.removeprefix('cpu-amd-epyc-')} {self.op} {self.weights} {self.threads} threads"


QUICK_PLANS = (
    Case(device="cpu-amd-epyc-f26m2-avx512", op="dense_n1000_k1500", shapes="m=1..48"),
    Case(device="cpu-amd-epyc-f25m17-avx2", op="dense_n320_k480", shapes="m=1..32", cold=True),
)
# Narrow and deep: threads may share the terms of a sum, unless every element must have one order.
NARROW = Case(device=DEVICES[1], op="dense_n48_k2048", shapes="m=1..200")
PLANS = (
    *(Case(device=device, op=op) for at, device in enumerate(DEVICES) for op in OPS[at % 2 :: 2]),
    *(Case(device=device, op="dense_n1536_k384", shapes="m=1..300", weights="hot") for device in DEVICES[1::2]),
    *(Case(device=device, op="dense_n640_k2048", shapes="m=1..512", cold=True) for device in DEVICES[::2]),
    NARROW,
    Case(device=DEVICES[1], op="dense_n48_k2048", shapes="m=1..200", one_order=True),
    Case(device=DEVICES[5], op="dense_n1_k4096", shapes="m=1..64"),
    Case(device=DEVICES[2], op="dense_n4096_k4096", shapes="m=8..512:8"),
    Case(device=DEVICES[4], op="dense_n1024_k1024", shapes="m=1,7,13,500,3000", seed=3),
    Case(device=DEVICES[4], op="dense_n1024_k1024", shapes="m=1..256", resumed=True),
    Case(device=DEVICES[3], op="dense_n1000_k1500", shapes="m=1..256", resumed=True, cold=True),
    Case(device=DEVICES[0], op="dense_n2560_k640", shapes="m=1..256", stop_after=120),
    Case(device=DEVICES[5], op="dense_n1024_k1024", shapes="m=1..256", stop_after=0),
    Case(device=DEVICES[5], op="dense_n1024_k1024", shapes="m=1..256", stop_after=20, cold=True),
    Case(device="cpu-amd-epyc-f26m2-avx2", op="dense_kn_n640_k2048", shapes="m=1..128"),
)
PACKS = {"two ops of one device": (QUICK_PLANS[1], NARROW)}

QUICK_PREDICTIONS = (Ask(device=DEVICES[2], op="dense_n1000_k1500"), Ask(device="xeon-8380", op="dense_n768_k3072"))
PREDICTIONS = (
    *(Ask(device=device, op=op) for device in DEVICES for op in (OPS[0], OPS[2], "dense_n4096_k4096")),
    *(Ask(device=device, op="dense_n1536_k384", weights="hot") for device in DEVICES),
    *(Ask(device=device, op="dense_n640_k2048", threads=2) for device in DEVICES[1::3]),
    Ask(device="epyc-7763", op="dense_n2304_k768", threads=64),
    Ask(device="xeon-8380", op="dense_n50_k64"),
)

QUICK_SELECTIONS = (
    ("dense:n=2304,k=768,dtype=fp16", "h100", "dynamic"),
    ("dense:n=1000,k=600", "epyc-7763", "m=1..64"),
)
SELECTIONS = (
    *(("dense:n=2304,k=768,dtype=fp16", gpu, "dynamic") for gpu in ("a100-80gb", "h200", "b200", "l4", "t4", "rtx-4090")),
    *(("dense:n=768,k=3072", device, "dynamic") for device in ("a100-40gb", "v100", "t4", "h100", "rtx-3090", "l40s")),
    *(("dense:n=1000,k=602,dtype=bf16", device, "m=1..512") for device in ("h100", "a10", "b200")),
    ("dense:n=4096,k=4096,dtype=fp16", "h100", "m=1,16,128,2048"),
    ("dense:n=64,k=64", "a6000", "m=1..16"),
    ("dense:n=2304,k=768,dtype=fp16,weight=kn", "h200", "dynamic"),
    ("dense:n=2304,k=768,weight=kn", "rtx-3060-laptop", "dynamic"),
    *(("dense:n=2304,k=768", device, "dynamic") for device in ("epyc-7763", "xeon-8380", *DEVICES)),
    *(("dense:n=1000,k=600", device, "m=1..48") for device in ("xeon-8380", *DEVICES)),
    ("dense:n=7,k=5", "xeon-8380", "m=1..3"),
)

DOCUMENTS = {
    "two ops for epyc-7763": (
        "epyc-7763", ("dense:n=48,k=320", "dense:n=200,k=64,weight=kn"), "m=1..40",
        ("dense_n48_k320 m=1", "dense_n48_k320 m=37", "dense_kn_n200_k64 m=100"),
    ),
}  # fmt: skip


def cpu_kernels() -> list[str]:
    """Names of micro-kernels that go through every height, width, count of streams, unroll, kind of prefetch and tail."""
    names = []
    heights, prefetches = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16), (0, 2, 4, 6, 8, 16, 32, 64, 128)
    for at in range(60):
        lanes = (4, 8, 16)[at % 3]
        vectors = (1, 2, 3, 4, 6, 8, 12)[at % 7]
        streams = [count for count in range(1, 5) if vectors % count == 0]
        rows, ahead = heights[at % 11], prefetches[at * 5 % 9]
        if ahead in (2, 4, 6) and not 4 <= rows <= 10:
            rows = 4 + at % 7
        width, least = vectors * lanes, min(lanes, 8)
        tail = (at * 3 % 5) * least
        panel, unroll = width // streams[at // 2 % len(streams)], (1, 2, 4, 8)[at // 3 % 4]
        name = f"mr{rows}_nr{width}_pw{panel}_ku{unroll}_vl{lanes}_pf{ahead}"
        names.append(f"cpu_dense_fp32__{name}" + (f"_nt{tail}" if 0 < tail < width else ""))
    return names


QUICK_MODELS = ("encoder", "branched")
MODELS = ("image", "sums", "sizes", "beside", "small encoder", "cached", "chosen", "grown", "looped", "carried")

COMMANDS = {
    "records list": ("records", "list", "--db", "DB", "--json"),
    "candidates": ("candidates", "--op", "dense:n=96,k=64", "--device", "epyc-7763", "--json"),
    "records --help": ("records", "--help"),
    **{f"records {verb} --help": ("records", verb, "--help") for verb in ("list", "check", "import", "export")},
    "transfer --help": ("transfer", "--help"),
}  # --help of other verbs: tests/golden/cli/test_pack_verbs
RECORDS = ("timed", "failed", "repeated", "several kernels", "two threads, hot")
CODES = (
    "cpu_dense_fp32__mr2_nr16_pw8_ku4_vl8_pf0_nt12",
    "cpu_dense_bf16__mr4_nr8_pw8_ku1_vl8_pf0_ot1",
    "cpu_generated_softmax_fp32__vl8_u1_ax2_kp0_fu111",
    "cuda_simt_fp32__bm32_bn64_bk8_tm4_tn4_v4_kn0",
)

CALL_SHAPES = 5
CALLS = (
    *(f"dense:n=72,k=56{more}" for more in ("", ",epilogue=bias+gelu", ",epilogue=bias+relu", ",weight=kn", ",dtype=fp16",
                                            ",dtype=bf16", ",dtype=int8", ",dtype=int8,in=int8")),
    *(f"batch_matmul:n=40,k=32,layout={more}" for more in ("nn", "nt", "tn", "nt,dtype=fp16", "nn,dtype=bf16",
                                                           "nt,dtype=int8")),
    *(f"conv2d:c=16,f=24,r=3,s=3,pad=1{more}" for more in ("", ",layout=nhwc", ",dtype=bf16", ",dtype=fp16", ",dtype=int8",
                                                           ",epilogue=bias+relu")),
    "conv2d:c=32,f=32,r=3,s=3,pad=1,groups=32", "conv2d:c=16,f=16,r=1,s=1", "conv1d:c=16,f=16,s=3,pad=1",
    "conv_transpose2d:c=16,f=16,r=3,s=3,pad=1", "conv_transpose1d:c=16,f=16,s=3,pad=1",
    "dense:n=72,k=56,out=bf16", "attention:d=32", "attention:d=32,causal=end",
    "softmax:", "log_softmax:", "layer_norm:", "rms_norm:", "add_layer_norm:", "gelu:", "gelu_tanh:", "silu:",
    "reduce_sum:over=last", "reduce_max:over=last", "transpose:order=heads", "max_pool:kernel=3,stride=2,pad=1",
)  # fmt: skip

QUICK_CUDA = (
    "cuda_simt_fp32__bm32_bn64_bk8_tm4_tn4_v4_kn0",
    "cuda_mma_fp16__bm64_bn64_bk32_wm2_wn2_st3_v8_kn0",
    "cuda_wgmma_fp16__bm64_bn64_bk64_wr1_st2_v8_kn0",
)
CUDA = (
    "cuda_simt_fp32__bm64_bn64_bk16_tm8_tn8_v4_kn0",
    "cuda_simt_fp32__bm8_bn64_bk32_tm2_tn4_v4_kn0",
    "cuda_simt_fp32__bm32_bn64_bk8_tm4_tn4_v1_kn0",
    "cuda_simt_fp32__bm32_bn64_bk8_tm4_tn4_v2_kn0",
    "cuda_simt_fp32__bm32_bn64_bk16_tm4_tn8_v4_kn1",
    "cuda_simt_fp32__bm128_bn128_bk8_tm8_tn8_v4_kn0",
    "cuda_mma_fp16__bm16_bn32_bk64_wm1_wn2_st2_v8_kn0",
    "cuda_mma_bf16__bm64_bn32_bk32_wm4_wn1_st5_v8_kn0",
    "cuda_mma_fp16__bm64_bn32_bk32_wm2_wn1_st3_v2_kn0",
    "cuda_mma_fp16__bm64_bn64_bk32_wm2_wn2_st3_v4_kn0",
    "cuda_mma_fp16__bm32_bn64_bk32_wm1_wn2_st3_v1_kn0",
    "cuda_mma_fp16__bm32_bn64_bk32_wm1_wn2_st3_v8_kn1",
    "cuda_mma_bf16__bm128_bn128_bk32_wm2_wn4_st4_v8_kn0",
    "cuda_wgmma_bf16__bm128_bn32_bk64_wr1_st3_v8_kn0",
    "cuda_wgmma_fp16__bm128_bn96_bk64_wr2_st3_v8_kn0",
    "cuda_wgmma_fp16__bm64_bn128_bk64_wr1_st3_v8_kn1",
    "cuda_wgmma_fp16__bm128_bn256_bk64_wr1_st4_v8_kn0",
)
SPACES = (
    *(("cpu_dense_fp32", op, device) for op in ("dense_n1000_k1500", "dense_n7_k5") for device in DEVICES[:3]),
    *(("cuda_simt_fp32", op, "h100") for op in ("dense:n=768,k=3072", "dense:n=71,k=33,weight=kn")),
    *((f"cuda_{kind}_{dtype}", f"dense:n=2304,k=768,dtype={dtype}", "h100")
      for kind in ("mma", "wgmma") for dtype in ("fp16", "bf16")),
)  # fmt: skip
