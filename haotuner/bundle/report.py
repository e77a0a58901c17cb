"""``report.md`` from the journal: what the machine is, what was right, how fast, beside whom, and what went wrong."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from haotuner.bundle import suites
from haotuner.bundle.journal import entries
from haotuner.bundle.manifest import Bundle
from haotuner.bundle.outcome import answered, right
from haotuner.bundle.peers import PEERS
from haotuner.bundle.trials import CHECK, PEAK, PEER, SUBSET, TIME, Task
from haotuner.words.op import Op
from haotuner.words.shape import Shape

NAME = "report.md"
Key = tuple[str, int, str]  # op, m, state of the weights


@dataclass(slots=True)
class Findings:
    """The journal, sorted out."""

    checks: dict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))  # by kernel
    peaks: dict[str, float] = field(default_factory=dict)  # medians
    ours: dict[Key, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))  # kernel to median microseconds
    theirs: dict[Key, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))  # peer likewise
    subsets: dict[tuple[str, int, int], dict[str, float]] = field(default_factory=lambda: defaultdict(dict))  # op, m, units
    units_seen: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))  # by units asked for
    failures: list[tuple[Task, Mapping[str, str]]] = field(default_factory=list)
    sanitizer: list[Mapping[str, Any]] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)


def sort_out(journal: Sequence[Mapping[str, Any]], fingerprint: str, codes: Mapping[str, str]) -> Findings:
    """Everything in a journal that belongs to one judge on one kind of machine, of the kernels as they are now."""
    found = Findings()
    for line in journal:
        if "missing" in line:
            found.missing[line["missing"]] = line["why"]
        if line.get("fingerprint") == fingerprint and "tool" in line and line["code"] == codes.get(line["kernel"]):
            found.sanitizer.append(line)
    for task, answer in answered(journal, fingerprint, codes):
        _take(found, task, answer)
    return found


def _take(found: Findings, task: Task, answer: Mapping[str, Any]) -> None:
    if task.stage == CHECK:
        found.checks[task.kernel].append(right(answer))
    if "failed" in answer:
        found.failures.append((task, answer["failed"]))
    elif task.stage == PEAK:
        found.peaks[task.kernel] = statistics.median(answer["rates"])
    elif task.stage in (TIME, PEER):
        target = found.ours if task.stage == TIME else found.theirs
        target[task.op().name, task.extents[0], task.weights][task.kernel] = statistics.median(answer["samples_us"])
    elif task.stage == SUBSET:
        units = int(answer["facts"]["units_seen"])
        found.units_seen[task.units].add(units)
        found.subsets[task.op().name, task.extents[0], task.units][task.kernel] = statistics.median(answer["samples_us"])


def write(out: Path, bundle: Bundle, arch: str, fingerprint: str) -> None:
    """Write the report of everything the folder knows about this bundle on this machine."""
    codes = {entry.kernel: entry.code for entry in bundle.kernels[arch]}
    found = sort_out(list(entries(out / "journal.jsonl")), fingerprint, codes)
    inventory = json.loads((out / "inventory.json").read_text())
    parts = [_machine(inventory, bundle, fingerprint), _correctness(found), _ceilings(found)]
    parts += [_workload(workload, found) for workload in suites.read(bundle.root).timed]
    parts += [_summary(found), _subsets(found), _sanitizer(found), _failures(found)]
    (out / NAME).write_text("\n\n".join(part for part in parts if part) + "\n")


def _machine(inventory: Mapping[str, Any], bundle: Bundle, fingerprint: str) -> str:
    device, smi, torch = inventory["device"], inventory["nvidia-smi"], inventory["torch"]
    lines = [
        f"# {device.get('name', 'GPU')}: bundle {bundle.name}",
        f"haotuner {bundle.version}, {bundle.built}, nvcc {bundle.toolkit}; fingerprint `{fingerprint}`.",
        f"{device.get('units')} multiprocessors, {device.get('memory_bytes', 0) / 1e9:.0f} GB, "
        f"L2 {device.get('l2_bytes', 0) / 1e6:.0f} MB, driver {smi.get('driver_version', 'unknown')} "
        f"(CUDA {device.get('driver')}). "
        f"SM clock {smi.get('clocks.sm', '?')} of {smi.get('clocks.max.sm', '?')} MHz at the start.",
        f"torch {torch.get('version', 'absent')}, triton {inventory['triton'].get('version', 'absent')}.",
    ]
    return "\n".join(lines)


def _correctness(found: Findings) -> str:
    if not found.checks:
        return ""
    families: dict[str, list[bool]] = defaultdict(list)
    for kernel, verdicts in found.checks.items():
        families[kernel.partition("__")[0]].append(all(verdicts))
    rows = [f"| {family} | {len(kernels)} | {sum(kernels)} |" for family, kernels in sorted(families.items())]
    wrong = sorted(kernel for kernel, verdicts in found.checks.items() if not all(verdicts))
    listed = "\n\nWrong: " + ", ".join(f"`{kernel}`" for kernel in wrong) if wrong else ""
    return "## Correctness on ragged shapes\n| family | kernels | right |\n|---|---|---|\n" + "\n".join(rows) + listed


def _ceilings(found: Findings) -> str:
    units = {
        "read": "GB/s",
        "write": "GB/s",
        "copy": "GB/s",
        "units": "multiprocessors",
        "subset": "multiprocessors, half asked for",
    }
    rows = [f"| {what} | {value:.4g} | {units.get(what, 'TFLOP/s')} |" for what, value in found.peaks.items()]
    return "## Measured ceilings\n| what | median | unit |\n|---|---|---|\n" + "\n".join(rows) if rows else ""


def _workload(workload: suites.Workload, found: Findings) -> str:
    op = Op.parse(workload.op)
    rows = []
    for m in workload.rows:
        for weights in ("cold", "hot"):
            times = found.ours.get((op.name, m, weights), {})
            if not times:
                continue
            kernel = min(times, key=lambda name: times[name])
            us = times[kernel]
            shape = Shape.of(m=m)
            floor = _floor_us(found.peaks, op.dtype, op.flops(shape), op.least_bytes(shape))
            theirs = found.theirs.get((op.name, m, weights), {})
            ratios = [f"{theirs[peer] / us:.2f}" if peer in theirs else "" for peer in PEERS]
            share = f"{floor / us:.0%}" if floor else ""
            rows.append(
                f"| {m} | {weights} | {us:.2f} | {op.flops(shape) / us / 1e6:.1f} | {share} | {' | '.join(ratios)} | "
                f"{len(times)} | `{kernel.partition('__')[0]}` {kernel.partition('__')[2]} |"
            )
    if not rows:
        return ""
    head = (
        f"## {workload.name}: `{op.name}`\n"
        "| m | weights | best us | TFLOP/s | of the ceiling | torch / ours | triton / ours | measured | best kernel |\n"
        "|---|---|---|---|---|---|---|---|---|\n"
    )
    return head + "\n".join(rows)


def _floor_us(peaks: Mapping[str, float], dtype: str, flops: int, least_bytes: int) -> float:
    """The longer of the arithmetic's and the memory's time at the measured ceilings; 0 where they were not measured."""
    names = ("fma",) if dtype == "fp32" else ("warpgroup", f"tensor_{dtype}")
    tflops = max((peaks.get(name, 0.0) for name in names), default=0.0)
    gbps = peaks.get("read", 0.0)
    return max(flops / tflops / 1e6, least_bytes / gbps / 1e3) if tflops and gbps else 0.0


def _summary(found: Findings) -> str:
    lines = [f"{sum(map(len, found.ours.values()))} pairs of kernel and shape were timed."]
    for peer in PEERS:
        ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
        for key, theirs in found.theirs.items():
            ours = found.ours.get(key)
            if ours and peer in theirs:
                ratios[key[0].partition("_")[0] + " " + _dtype(key[0]), key[2]].append(theirs[peer] / min(ours.values()))
        for (what, weights), values in sorted(ratios.items()):
            mean = math.exp(statistics.fmean(math.log(value) for value in values))
            lines.append(
                f"{peer} over ours, {what}, {weights} weights: geometric mean {mean:.3f} over {len(values)} shapes."
            )
        if peer in found.missing:
            lines.append(f"{peer} is not here ({found.missing[peer]}): no ratio is claimed.")
    return "## Summary\n" + "\n".join(lines)


def _dtype(op: str) -> str:
    return next((word for word in op.split("_") if word in ("fp16", "bf16")), "fp32")


def _subsets(found: Findings) -> str:
    if not found.subsets:
        return ""
    rows = []
    for (op, m, units), times in sorted(found.subsets.items()):
        kernel = min(times, key=lambda name: times[name])
        rows.append(f"| `{op}` | {m} | {units} | {times[kernel]:.2f} | `{kernel}` |")
    seen = ", ".join(f"asked {asked}, blocks ran on {sorted(got)}" for asked, got in sorted(found.units_seen.items()))
    return (
        f"## Subsets of the multiprocessors\n{seen}.\n| op | m | asked | best us | kernel |\n|---|---|---|---|---|\n"
        + "\n".join(rows)
    )


def _sanitizer(found: Findings) -> str:
    rows = []
    for line in found.sanitizer:
        errors = "unfinished" if line["errors"] is None else line["errors"]
        rows.append(f"| `{line['kernel']}` | {line['tool']} | {errors} | {line['detail']} |")
    return "## compute-sanitizer\n| kernel | tool | errors | detail |\n|---|---|---|---|\n" + "\n".join(rows) if rows else ""


def _failures(found: Findings) -> str:
    if not found.failures:
        return ""
    counted = Counter((task.stage, failed["stage"], failed["reason"]) for task, failed in found.failures)
    rows = [f"| {stage} | {where} | {reason} | {count} |" for (stage, where, reason), count in sorted(counted.items())]
    first = "\n".join(
        f"- `{task.kernel}` {task.extents}: {failed['reason']}, {failed['detail']}" for task, failed in found.failures[:10]
    )
    return "## What failed\n| task | stage | reason | count |\n|---|---|---|---|\n" + "\n".join(rows) + "\n\n" + first
