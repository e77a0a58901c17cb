"""The walks of this folder on a GPU: ``python -m tests.runtime.cuda_silicon build FOLDER`` here, ``run FOLDER`` there.

``build`` writes packs of every kind of kernel with device code for one architecture; it needs nvcc and no GPU. ``run``
serves them on ``cuda:0``, a walk a process, and prints what is wrong. Launches are not counted: a driver tells no counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
WALK_SECONDS = 150
AS_SHIPPED: tuple[str, ...] = ()  # flags of nvcc; tests over the stand-in compile as quickly as they can
SCENARIOS, MODELS, CHAINS = "tests.runtime.cuda_scenarios", "tests.runtime.cuda_models", "tests.runtime.cuda_chains"


def walks() -> list[tuple[Any, tuple[str, ...]]]:
    """Picks, and the scenarios that hold on any driver."""
    from tests.runtime import cuda_packs as packs
    from tests.runtime.cuda_byte_packs import BYTE_PICKS, BYTE_PRODUCTS
    from tests.runtime.cuda_window_packs import BESIDE_COLUMNS, IMAGE_PICKS, PHASE_PICKS, WINDOW_PICKS

    dense = ("numbers", "alignment", "looked", "refusals", "frameworks", "captured", "extents")
    listed = (
        ((packs.SIMT,), (*dense, "threads")),
        ((packs.WGMMA,), dense),
        (packs.KN_PICKS, ("numbers", "alignment", "stored")),
        (packs.GROUPED_PICKS, ("grouped", "grouped_refusals")),
        ((packs.GROUPED_HOPPER,), ("torch_groups",)),
        (packs.FUSED_PICKS, ("fused", "fused_refusals", "torch_fused")),
        ((*packs.STEPPED_PICKS, *packs.TRANSPOSED_PICKS, *packs.DIRECT_PICKS, *BYTE_PICKS), ("stepped",)),
        ((*BYTE_PRODUCTS, packs.STEPPED_PRODUCT), ("stepped_products",)),
        (WINDOW_PICKS, ("stepped", "windowed")),
        (IMAGE_PICKS, ("stepped", "images")),
        (PHASE_PICKS, ("stepped", "phased")),
        ((BESIDE_COLUMNS,), ("windows_beside_columns",)),
        (packs.PRODUCT_PICKS, ("products", "products_beside", "product_refusals")),
        (packs.GENERATED_PICKS, ("generated", "generated_refusals")),
        ((packs.PARTS_PICK,), ("generated_parts",)),
        ((packs.ATTENTION_PICK, packs.TENSOR_PICK), ("generated_keys",)),
        ((packs.STAGES_PICK,), ("generated_stages",)),
        (packs.CONV_PICKS, ("convolutions", "convolution_refusals", "torch_convolutions")),
        (packs.TURNED_PICKS, ("turned",)),
    )
    return [(pick, names) for picks, names in listed for pick in picks]


def build(folder: Path, arch: str) -> None:
    """Packs of every pick, kind, group and model below ``folder``, and the list of walks over them."""
    import haotuner.backends.cuda.translation_unit as units
    from haotuner.spec.op import Op
    from haotuner.tuning.request import ops_of
    from tests.runtime import cuda_beside_packs, cuda_model_packs, test_cuda_kinds
    from tests.runtime import cuda_packs as packs
    from tests.runtime.chain_graphs import ON_DEVICE
    from tests.runtime.cuda_packs import family, make_pack, packed
    from tests.runtime.test_group import files as group_files
    from tests.standin.cubins import cubin_of

    entries: list[list[str]] = []
    code = folder / "code"
    code.mkdir(parents=True, exist_ok=True)
    listed = walks()
    groups = [listed[at : at + 8] for at in range(0, len(listed), 8)]

    def unit(number: int) -> Path:
        kernels = {kernel.name: (family(kernel), kernel) for pick, _ in groups[number] for kernel in pick.kernels}
        products = [pick for pick, _ in groups[number] if pick not in (*packs.GENERATED_PICKS, *packs.ONE_FOLD_PICKS)]
        reduced = sorted({Op.parse(pick.op).dtype for pick in products})
        source = code / f"unit{number}.cu"
        if not source.exists():
            source.write_text(units.device_unit(kernels, reduces=reduced))
        return cubin_of(source, code, arch, AS_SHIPPED)

    for number, group in enumerate(groups):
        cubin = unit(number)
        for index, (pick, names) in enumerate(group):
            pack = folder / f"pack-{number}-{index}"
            if not pack.exists():
                make_pack(pack, [packed(pick)], arch, cubin)
            entries += [[SCENARIOS, name, pack.name, pick.op] for name in names]
        print(f"unit {number} of {len(groups)}", flush=True)
    kinds = folder / "kinds"
    kinds.mkdir(exist_ok=True)
    files = (*group_files(kinds), *test_cuda_kinds.more_files(kinds))
    every = [*test_cuda_kinds.every_op(), *(op for file in files for op in ops_of(f"group:{file}"))]
    ops = [test_cuda_kinds.packed(op) for op in every]
    kernels = {sliced.kernel.name: sliced.kernel for op in ops for sliced in op.kernels if sliced.kernel is not None}
    source = code / "kinds.cu"
    if not source.exists():
        source.write_text(
            units.device_unit({name: (family(kernel), kernel) for name, kernel in kernels.items()}, reduces=())
        )
    if not (kinds / "pack").exists():
        make_pack(kinds / "pack", ops, arch, cubin_of(source, code, arch, AS_SHIPPED))
    entries.append(["tests.runtime.cuda_kinds", "", "kinds/pack", "every kind that is generated"])
    if not (folder / "beside").exists():
        cuda_beside_packs.beside_pack(folder / "beside", code)
    cubin = cubin_of(code / "beside.cu", code, arch)
    (folder / "beside.cubin").write_bytes(Path(cubin).read_bytes())
    entries.append(["tests.runtime.cuda_beside", "", "beside", "several outputs in a launch"])
    graphs = cuda_model_packs.GRAPHS
    if not (folder / "encoder").exists():
        cuda_model_packs.model_pack(folder / "encoder", arch, code, {"encoder": graphs["encoder"]})
    rest = {name: graph for name, graph in graphs.items() if name != "encoder"}
    if not (folder / "models").exists():
        cuda_model_packs.model_pack(folder / "models", arch, code, rest)
    entries += [[MODELS, name, "encoder", "encoder"] for name in ("numbers", "captured", "streams", "many", "doors")]
    entries += [[MODELS, name, "models", "models of every kind of step"] for name in ("loops", "empty")]
    if not (folder / "chains").exists():
        cuda_model_packs.model_pack(folder / "chains", arch, code, ON_DEVICE)
    chained = ("numbers", "steady", "captured", "streams", "refusals", "framework")
    entries += [[CHAINS, name, "chains", "sizes, branches and turns that data tell"] for name in chained]
    (folder / "walks.json").write_text(json.dumps(entries, indent=0))


def run(folder: Path, out: Path, only: str, jobs: int) -> int:
    """Every walk in a process of its own; how many were wrong."""
    listed = [walk for walk in json.loads((folder / "walks.json").read_text()) if only in " ".join(walk)]

    def walked(walk: list[str]) -> dict[str, Any]:
        module, scenario, pack, what = walk
        words = ["beside.cubin"] if module.endswith("cuda_beside") else []
        arguments = [*([scenario] if scenario else []), str(folder / pack), *(str(folder / word) for word in words)]
        command = [sys.executable, "-m", "tests.runtime.cuda_silicon", "walk", module, *arguments]
        began = time.monotonic()
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WALK_SECONDS, check=False)
            code, output = done.returncode, (done.stdout[-1500:] + done.stderr[-3000:]).strip()
        except subprocess.TimeoutExpired:
            code, output = -1, "did not end"
        line = {
            "walk": scenario or module.rpartition(".")[2],
            "pack": what,
            "exit": code,
            "seconds": time.monotonic() - began,
        }
        return line | ({"said": output} if code else {})

    wrong = 0
    with ThreadPoolExecutor(jobs) as pool, out.open("w") as file:
        for line in pool.map(walked, listed):
            file.write(json.dumps(line) + "\n")
            file.flush()
            wrong += line["exit"] != 0
            if line["exit"]:
                print(
                    f"WRONG {line['walk']} {line['pack']}: {line['said'].splitlines()[-1] if line['said'] else ''}",
                    flush=True,
                )
    print(f"{len(listed)} walks, {wrong} wrong")
    return wrong


class Unasked(dict[str, Any]):
    """Counts that were never taken: whatever is looked up agrees with what it is compared to."""

    def get(self, name: str, default: Any = None) -> Any:
        """A count that agrees."""
        return self[name]

    def __missing__(self, name: str) -> Any:
        return ANYTHING


class Anything(int):
    """Equal to every number."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


ANYTHING = Anything(0)
PLANNED = ("_refused", "timed")  # parts of walks whose driver fails as planned, which a real one does not


class Real:
    """A driver library whose stand-in's own calls do nothing."""

    def __init__(self, library: Any) -> None:
        self.library = library

    def __getattr__(self, name: str) -> Any:
        return (lambda *_: 0) if name.startswith("standin_") else getattr(self.library, name)


def walk(module: str, arguments: list[str]) -> None:
    """One walk in this process, on the driver that is there."""
    import importlib

    from tests.standin.client import Driver

    opened = Driver.__init__

    def opens(self: Any, *how: Any) -> None:
        opened(self, *how)
        self.library = Real(self.library)

    Driver.__init__ = opens  # type: ignore[assignment, method-assign]
    imported = importlib.import_module(module)
    for name, other in list(sys.modules.items()):
        if name.startswith("tests.") and hasattr(other, "counts"):
            other.counts = lambda _: Unasked()  # type: ignore[attr-defined]
        for part in PLANNED if name.startswith("tests.runtime.") else ():
            if hasattr(other, part):
                setattr(other, part, lambda *_, **__: None)
    if hasattr(imported, "run"):
        imported.run(*arguments)
    else:
        imported.main(*arguments)


def main(arguments: list[str]) -> int:
    """Build, run or walk."""
    if arguments[0] == "walk":
        walk(arguments[1], arguments[2:])
        return 0
    parser = argparse.ArgumentParser(prog="python -m tests.runtime.cuda_silicon", description=__doc__)
    parser.add_argument("verb", choices=("build", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--only", default="", help="walks whose words contain this")
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--out", type=Path, default=Path("silicon.jsonl"))
    options = parser.parse_args(arguments)
    if options.verb == "build":
        build(options.folder.resolve(), options.arch)
        return 0
    return int(run(options.folder.resolve(), options.out, options.only, options.jobs) > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
