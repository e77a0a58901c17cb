"""Which scenarios and programs cover which host code for CUDA: what ``cuda_variants`` runs."""

from __future__ import annotations

from haotuner.backends.cuda import timing_library
from haotuner.backends.cuda.pack_source import MODEL_SOURCES
from tests.runtime.cuda_byte_packs import BYTE_PICKS, BYTE_PRODUCTS
from tests.runtime.cuda_packs import (
    ATTENTION_PICK,
    CONV_PICKS,
    DIRECT_PICKS,
    FUSED_FP16,
    FUSED_FP32,
    GENERATED_PICKS,
    GROUPED_FP32,
    GROUPED_HOPPER,
    KN_HOPPER,
    ONE_FOLD_PICKS,
    PARTS_PICK,
    PRODUCT_FP16,
    PRODUCT_FP32,
    PRODUCT_TN_FP32,
    STAGES_PICK,
    STEPPED_PICKS,
    TENSOR_PICK,
    TRANSPOSED_PICKS,
)
from tests.runtime.cuda_window_packs import BESIDE_COLUMNS, IMAGE_PICKS, PHASE_PICKS, WINDOW_PICKS
from tests.runtime.native_builds import CLIB, DOORS_FLAGS, NATIVE

SCENARIOS = (
    "refusals", "misuses", "faults", "numbers", "alignment", "looked", "unprepared", "captured", "devices", "context",
    "counted", "forked", "preparing", "frameworks", "allocating", "settings", "extents", "captures", "lost",
)  # fmt: skip
OF_THE_DRIVER = ("early", "crowd", "older_load", "older_maps", "older_still", "other_major", "other_minor", "other_shared",
                 "other_driver", "threads")  # fmt: skip
OPENING = ("driver.c", "loaded.c", "launch.c", "placed.c")  # what they are for, beside the rest
PRODUCTS = ("products", "products_beside", "products_elsewhere", "product_refusals", "product_faults")
# Picks beside PICKS, which go through all of the above, and what they are for.
MORE = {
    KN_HOPPER: ("stored",),
    GROUPED_HOPPER: ("grouped", "grouped_refusals"),
    GROUPED_FP32: ("grouped", "grouped_refusals"),
    FUSED_FP32: ("fused", "fused_refusals"),
    PRODUCT_FP16: PRODUCTS,
    PRODUCT_FP32: PRODUCTS,
    PRODUCT_TN_FP32: ("turned",),
    **dict.fromkeys((*STEPPED_PICKS, *DIRECT_PICKS, *TRANSPOSED_PICKS), ("stepped", "stepped_faults")),
    **dict.fromkeys(CONV_PICKS, ("convolutions", "convolution_refusals", "convolution_faults")),
    TRANSPOSED_PICKS[0]: ("stepped", "stepped_faults", "convolution_refusals", "convolution_faults"),
    **dict.fromkeys(GENERATED_PICKS, ("generated", "generated_refusals", "generated_faults")),
    PARTS_PICK: ("generated_parts",),
    ATTENTION_PICK: ("generated_keys",),
    TENSOR_PICK: ("generated_keys",),
    STAGES_PICK: ("generated_stages",),
    **dict.fromkeys(BYTE_PICKS, ("stepped", "stepped_faults")),
    **dict.fromkeys(BYTE_PRODUCTS, ("stepped_products",)),
    **dict.fromkeys(WINDOW_PICKS, ("stepped", "stepped_faults", "windowed")),
    **dict.fromkeys(IMAGE_PICKS, ("stepped", "stepped_faults", "images")),
    **dict.fromkeys(PHASE_PICKS, ("stepped", "stepped_faults", "phased")),
    BESIDE_COLUMNS: ("windows_beside_columns",),
    FUSED_FP16: ("fused_refusals",),
}
# Files that serve one kind alone: who else calls nothing of them.
KIND = {
    "cuda_conv.c": (
        *CONV_PICKS,
        *DIRECT_PICKS,
        *TRANSPOSED_PICKS,
        *STEPPED_PICKS,
        *WINDOW_PICKS,
        *IMAGE_PICKS,
        *PHASE_PICKS,
        BESIDE_COLUMNS,
        *BYTE_PICKS,
    ),
    "cuda_conv_windows.c": (*WINDOW_PICKS, *IMAGE_PICKS, *PHASE_PICKS),
    "cuda_conv_phases.c": PHASE_PICKS,
    "conv_residue.c": PHASE_PICKS,
    "cuda_conv_transposed.c": TRANSPOSED_PICKS,
    "cuda_generated.c": (*GENERATED_PICKS, *ONE_FOLD_PICKS),
    "generated.c": (*GENERATED_PICKS, *ONE_FOLD_PICKS),
}
# Sources whose tests are all, between them.
ALL_TESTS = (
    NATIVE / "cuda" / "driver.c",
    CLIB / "gpu.c",
    NATIVE / "check.c",
    NATIVE / "cuda" / "workspace.c",
    NATIVE / "cuda" / "model.c",
)
MODELS = {NATIVE / name for name in MODEL_SOURCES if name.startswith("cuda/")}  # of packs with whole models alone
WITH_MODELS = ("loaded.c",)  # what packs with whole models have beside the rest
OF_MODELS = {
    "tests.runtime.cuda_model_faults": ("repeated", "walked", "loaded", "opened", "damaged", "starved", "timed"),
    "tests.runtime.cuda_models": ("numbers", "empty", "steady", "refusals", "faults", "doors", "driven", "freed", "captured",
                                  "streams", "devices", "many", "sequences"),
    "tests.runtime.cuda_chains": ("numbers", "steady", "captured", "refusals", "framework", "doors", "faults", "forked",
                                  "freed"),
}  # fmt: skip
FLAGS = ("-std=c11", "-O1", "-fPIC", "-fvisibility=hidden", "-pthread", "-w")
WATCHED = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
)  # what the C program and the pack in it are built with
SLOWLY = "cuInit:1+=wait:20,cuDevicePrimaryCtxRetain:1+=wait:20,cuModuleLoadData:1+=wait:20"  # so that threads meet there
SECONDS = 8.0  # of processors, against steps that use one to three
TIMING = {source.name for source in timing_library.SOURCES}
PROGRAMS: dict[str, tuple[str, ...]] = {  # and how each is linked
    "drive_cuda": (),
    "drive_doors": DOORS_FLAGS,
    "drive_bound": DOORS_FLAGS,
    "drive_ffi": ("-rdynamic",),
    "drive_fused": (),
    "drive_grouped": (),
    "drive_products": (),
}
DRIVEN = {"threads": "", "together": f"{SLOWLY},cuModuleGetFunction:2=2"}  # modes of drive_cuda.c, and what fails there
TIMED = ("timing", "unended", "parted")  # scenarios of the library that times
UNITS = {"check.c": "checks", "workspace.c": "workspace"}  # programs of one file
SCENES = (
    "tests.runtime.cuda_scenarios",
    "tests.runtime.cuda_models",
    "tests.runtime.cuda_model_faults",
    "tests.runtime.cuda_chains",
    "tests.backends.cuda_timing",
    "tests.backends.cuda_timing_groups",
    "tests.backends.cuda_timing_batches",
    "tests.backends.cuda_timing_generated",
    "tests.backends.cuda_timing_direct",
    "tests.backends.cuda_timing_windows",
    "tests.runtime.cuda_warm",
)
# What else covers a file that CPUs share: tests that build the library anew from a tree with the change.
SHARED = {
    "serve.c": ("test_life.py", "test_results.py", "test_kinds.py", "test_bad_input.py"),
    "c_api.c": ("test_c_library.py", "test_cuda_c.py"),
    "check.c": ("test_bad_input.py", "test_kinds.py", "test_operator.py"),
    "ffi.c": ("test_bad_input.py", "test_life.py", "test_kinds.py", "test_pack_files.py", "test_results.py"),
    "gpu.c": ("test_cuda_packs.py", "test_cuda_c.py"),
    "linear.c": ("test_cuda_c.py", "test_c_library.py"),
    "open.c": ("test_cuda_c.py", "test_c_library.py"),
}
SHARED_SECONDS = 300
TREE = ("haotuner", "microkernels", "transfer", "hw_profiles", "tests", "pyproject.toml")
