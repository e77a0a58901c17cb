"""The stages of a run, in order, and the tasks of each: commands of haotuner, each a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from haotuner.spec.device import is_standin
from tests.bench.gpu_bundle.inventory import SANITIZER, tool
from tests.bench.gpu_bundle.suites import Suite

STAGES = ("inventory", "contract", "correctness", "tune", "serve", "race", "subsets", "sanitize", "export")
LIMIT_MINUTES = {"inventory": 4.0, "contract": 4.0, "correctness": 8.0, "export": 3.0}  # of whole stages; the others share
SHARES = {"tune": 0.6, "serve": 0.3, "race": 0.8, "subsets": 0.5, "sanitize": 1.0}  # of what is left when a stage begins
TUNE_EXTRA_S = 20.0  # beside its budget, a tuner starts its processes, builds a pack and checks it
ROW_EXTRA_S = 2.0  # beside its time, a raced shape is prepared and checked
SANITIZER_TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
SANITIZED_KERNELS = 6
PART_STEP = 8  # a part of a GPU has multiples of as many multiprocessors from compute capability 9.0 on, fewer before
NO_SUBSETS = f"the device has too few multiprocessors for a part of {PART_STEP}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One command. ``least_s``: with less time left it is not begun; ``why_not``: it cannot be done here at all."""

    stage: str
    name: str
    command: tuple[str, ...] = ()
    out: str = ""  # its output's path below the results
    least_s: float = 5.0
    right: tuple[int, ...] = (0,)  # exit codes after which it is done
    makes: str = ""  # what must be there afterwards
    why_not: str = ""

    @property
    def key(self) -> str:
        """Its name in the state."""
        return f"{self.stage}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """Where a run works: the unpacked bundle, the results, the device, the driver (real, or a stand-in's mode)."""

    root: Path
    out: Path
    device: str
    driver: str
    against: str


def tasks_of(stage: str, suite: Suite, context: RunContext, inventory: dict[str, Any]) -> list[Task]:
    """The tasks of a stage, as the machine is known after the first one."""
    if stage == "inventory":
        return [_task(stage, "machine", "tests.bench.gpu_bundle.inventory", context.device, out="inventory.json")]
    arch = str(inventory.get("device", {}).get("arch", ""))
    if stage == "contract":
        return [_contract(context, arch)]
    if stage == "correctness":
        return [_correctness(context, suite.kernels)]
    if stage == "tune":
        return [_haotuner(stage, work.name, makes=f"packs/{work.name}/manifest.json", right=(0, 3), least_s=suite.tune_s[0])
                for work in suite.works]  # fmt: skip
    if stage == "serve":
        packs = [context.out / "packs" / work.name for work in suite.works]
        return [_serve(context, pack, inventory) for pack in packs if pack.is_dir()]
    if stage == "race":
        tuned = [work for work in suite.works if (context.out / "packs" / work.name).is_dir()]
        return [_haotuner(stage, work.name, out=f"race/{work.name}.json", least_s=10.0, right=(0, 1)) for work in tuned]
    if stage == "subsets":
        return _parts(suite, int(inventory.get("device", {}).get("compute_units", 0)))
    if stage == "sanitize":
        return [_sanitize(context, name) for name in SANITIZER_TOOLS]
    if is_standin(str(inventory.get("device", {}).get("id", ""))):
        return [Task(stage=stage, name="records", why_not="times of a stand-in for tests are invented")]
    names = [*(work.name for work in suite.works), *(task.name for task in tasks_of("subsets", suite, context, inventory))]
    stores = [name for name in names if (context.out / "packs" / f"{name}.records.db").exists()]
    return [_export(context, name) for name in stores]


def commanded(
    task: Task, suite: Suite, context: RunContext, left_s: float, tasks_left: int
) -> tuple[tuple[str, ...], float]:
    """A task's command and time limit, with so much time left for it and those of its stage behind it."""
    if task.stage not in ("tune", "race", "subsets"):
        return task.command, left_s
    named, _, units = task.name.partition("-")
    work = next(work for work in suite.works if work.name == named)
    device = f"{context.device}/{units.removesuffix('sm')}" if units else context.device
    share = left_s / tasks_left
    pack = str(context.out / "packs" / task.name)
    words: tuple[str, ...]
    if task.stage != "race":
        least, most = suite.tune_s
        seconds = max(least, min(most, share - TUNE_EXTRA_S))
        words = ("tune", "--op", work.op.name, "--shapes", work.shapes, "--device", device, "--budget", f"{seconds:.0f}s")
        return (*task.command, *words, "--out", pack, "--resume"), min(left_s, seconds + 6 * TUNE_EXTRA_S)
    states = suite.weights.count(",") + 1
    rows = states * len(work.rows)
    least, most = suite.row_s
    row_s = max(least, min(most, share / rows - ROW_EXTRA_S))
    words = ("bench", pack, "--device", context.device, "--shapes", f"m={','.join(map(str, work.rows))}")
    words += ("--cache-state", suite.weights, "--seconds-per-row", f"{row_s:.2f}", "--json")
    return (*task.command, *words, *(("--peers", context.against) if context.against else ())), left_s


def _parts(suite: Suite, units: int) -> list[Task]:
    """The first layer of each type on parts of the device, as devices of their own: ``bert_base_qkv_fp32-64sm``."""
    first = {work.op.dtype: work for work in reversed(suite.works)}
    sizes = [size for share in suite.parts if (size := units // share // PART_STEP * PART_STEP)]
    if not sizes:
        return [Task(stage="subsets", name="multiprocessors", why_not=NO_SUBSETS)]
    return [_haotuner("subsets", f"{work.name}-{size}sm", makes=f"packs/{work.name}-{size}sm/manifest.json", right=(0, 3),
                      least_s=suite.tune_s[0]) for size in sizes for work in reversed(first.values())]  # fmt: skip


def _task(stage: str, name: str, module: str, *arguments: str, **more: Any) -> Task:
    return Task(stage=stage, name=name, command=(sys.executable, "-m", module, *arguments), **more)


def _haotuner(stage: str, name: str, **more: Any) -> Task:
    return _task(stage, name, "haotuner", **more)


def _contract(context: RunContext, arch: str) -> Task:
    folder = context.root / "driver"
    archs = {path.name.partition("-")[2]: path for path in sorted(folder.glob("driver_kernels-*"))}
    right = archs.get(arch) or archs.get(arch.rstrip("af"))
    wrong = next((path for name, path in archs.items() if name.rstrip("af")[:-1] != arch.rstrip("af")[:-1]), None)
    if right is None or wrong is None:
        return Task(
            stage="contract", name="driver", why_not=f"the bundle has no code of the suite for {arch or 'no device'}"
        )
    cubins = [str(path / "unit.cubin") for path in (right, wrong)]
    return _task("contract", "driver", "tests.contract.driver_process", context.driver, *cubins, out="contract.jsonl")


def _correctness(context: RunContext, kernels: int) -> Task:
    words = ("--device", context.device, "--kernels", str(kernels), "--out", str(context.out / "correctness.jsonl"),
             "--cache", str(code_cache(context)))  # fmt: skip
    return _task(
        "correctness", "kernels", "tests.bench.gpu_bundle.correctness", *words, right=(0, 1), makes="correctness.jsonl"
    )


def _serve(context: RunContext, pack: Path, inventory: dict[str, Any]) -> Task:
    torch = inventory.get("torch")
    if not isinstance(torch, list) or not torch[-1]:
        return Task(stage="serve", name=pack.name, why_not="torch is not there, or sees no GPU")
    answers = context.out / "serve" / f"{pack.name}.jsonl"
    words = (str(pack), "--device", context.device, "--out", str(answers))
    return _task("serve", pack.name, "tests.bench.gpu_bundle.served", *words, right=(0, 1), makes=f"serve/{pack.name}.jsonl")


def _sanitize(context: RunContext, name: str) -> Task:
    result = tool(SANITIZER)
    if result is None:
        return Task(stage="sanitize", name=name, why_not=f"{SANITIZER} is not installed")
    words = (result, f"--tool={name}", "--target-processes=all", "--error-exitcode=9", "--print-limit=5")
    answers = context.out / "sanitize" / f"{name}.jsonl"
    checked = ("--device", context.device, "--kernels", str(SANITIZED_KERNELS), "--out", str(answers))
    command = (
        *words,
        sys.executable,
        "-m",
        "tests.bench.gpu_bundle.correctness",
        *checked,
        "--cache",
        str(code_cache(context)),
    )
    return Task(stage="sanitize", name=name, command=command, out=f"sanitize/{name}.txt", least_s=30.0)


def _export(context: RunContext, name: str) -> Task:
    store = f"sqlite:///{context.out / 'packs' / name}.records.db"
    to = context.out / "records" / f"{name}.jsonl"
    return _task(
        "export", name, "haotuner", "records", "export", str(to), "--db", store, "--force", makes=f"records/{name}.jsonl"
    )


def code_cache(context: RunContext) -> Path:
    """The folder of compiled code that the bundle brings and that tuners keep theirs in."""
    return context.root / "cache" / "haotuner" / "device-code"


def folders(suite: Suite) -> Sequence[str]:
    """Folders of the results."""
    return ("packs", "serve", "race", "records", "sanitize")
