"""``python -m tests.bench.shared_models --data FOLDER``: judges and ships the shared model of GPUs; ``--cpu``: that of CPUs.

``FOLDER`` holds Kernel Tuner's caches, MIOpen's find databases and CLBlast's winners; the H200's timings are in the tree.
The tables of ``docs/results/transfer-shared.md`` leave out a device, an architecture, a family and a vendor in turn. The
share of the correction is chosen for each held-out table on other families of other devices. Our own families are judged
with the H200's records out, their only device.

CPUs are instruction sets of hosts, whose records are in the tree: dense fp32 by ``own_devices``, other kinds by
``kind_records``. ``docs/results/transfer-shared-cpu.md`` leaves out a device, an instruction set, a host and a kind.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from haotuner.cli.transfer_input import caches_in, is_something_else
from haotuner.cost.model import Scores
from haotuner.cost.model_file import Saved, write
from haotuner.errors import HaotunerError
from haotuner.hw_profiles.find import find_device
from haotuner.records.clblast import is_winners_file, read_winners
from haotuner.records.importing import load_kernel_tuner
from haotuner.records.miopen import load_find_database
from haotuner.records.timings import load_timings
from haotuner.records.winners import winner_tables
from haotuner.spec.record import Record
from haotuner.transfer.device_table import DeviceTable, Rows
from haotuner.transfer.fit import chosen_sources
from haotuner.transfer.reading import read_records
from haotuner.transfer.shared_model import (
    CPUS,
    GPUS,
    HeldOutTable,
    Verdict,
    chosen_share,
    facts_of,
    fit_shared,
    held_out,
    judged_tasks,
    runs_on_gpus,
    shipped_file,
    verdicts,
)
from tests.bench.own_devices import OPS
from tests.bench.own_records import FOLDER, KINDS, all_records
from tests.bench.ship_models import slim
from tests.bench.transfer_study.splits import architecture
from tests.bench.transfer_use import markdown

PAGE = Path("docs/results/transfer-shared.md")
HEAD = """# One model for kernels of any family on any GPU

Made by `python -m tests.bench.shared_models --data FOLDER`. First picks and best of the first ten as shares of the best
throughput, means over tasks, the worst first pick beside them; nothing of what is named in the first column was learned
from, nor known winners of it. The share of the correction is chosen on other families of other devices. *Error*: one
standard deviation of log(predicted / measured) within a task."""
CPU_PAGE = Path("docs/results/transfer-shared-cpu.md")
CPU_HEAD = """# One model for kernels of any kind on any CPU

Made by `python -m tests.bench.shared_models --cpu`. A device is an instruction set of a host. Figures and words as in
[the table of GPUs](transfer-shared.md)."""
WITHIN_HEAD = """## Measurements to within 2 % of the best

Kernels in the order of an expectation, timed one after the other, until the best of them is within 2 % of the best of all:
of an op at all its shapes together (geometric mean), and of each shape alone. Means over instruction sets held out in turn.
*Saved*: the analysis over the model. One kernel is the least, so that an analysis that needs 1.9 cannot be halved."""
WITHIN = 0.02
COLUMNS = ["held out", "ranked", "tasks", "roofline", "model", "worst roofline", "worst model", "roofline, ten",
           "model, ten", "error", "verdict"]  # fmt: skip
find = partial(find_device, measure=False)


def tables_of(data: Path | None) -> list[DeviceTable]:
    """Every GPU's table, of the folder's caches and of the timings in the tree."""
    records: list[Record] = []
    for path in sorted((FOLDER / "cuda").glob("*.json")):
        records += load_timings(path, find_device=find).records
    for path in () if data is None else caches_in(data):
        if is_something_else(path):
            continue
        try:
            records += load_kernel_tuner(path, find_device=find).records
        except HaotunerError as error:
            print(f"left out: {error}")
    for path in () if data is None else sorted(data.rglob("*.fdb.txt*")):
        records += load_find_database(path).records
    return [table for table in read_records(records, find).tables if runs_on_gpus(table.device)]


def winners_of(data: Path) -> list[DeviceTable]:
    """Tables of the winners that a folder's files name."""
    paths = [path for path in sorted(data.rglob("*.json")) if is_winners_file(path)]
    return [table for path in paths for table in winner_tables(read_winners(path)).tables]


def cpu_tables() -> list[DeviceTable]:
    """Every CPU's table, of the timings in the tree."""
    dense = [record for own in all_records() for record in own.records() if record.trial.op.name in OPS]
    kinds = [record for own in all_records(KINDS) for record in own.records()]
    devices = {own.device.id: own.device for own in [*all_records(KINDS), *all_records()]}
    return read_records([*dense, *kinds], devices.__getitem__).tables


def vendor(table: DeviceTable) -> str:
    """The maker of the table's device; of OpenCL's devices any other."""
    return {"hip": "AMD", "cuda": "NVIDIA"}.get(table.device.kind, "others")


def host(table: DeviceTable) -> str:
    """Host whose instruction set a CPU is."""
    return table.device.id.rpartition("-")[0]


def instruction_set(table: DeviceTable) -> str:
    """Instruction set that a CPU is."""
    return table.device.id.rpartition("-")[2]


def rows_of(label: str, verdicts_by_name: dict[str, Verdict]) -> Iterator[list[str]]:
    """Lines of the page's table."""
    for name, v in verdicts_by_name.items():
        figures = (v.roofline, v.model, v.worst_roofline, v.worst_model, v.roofline_10, v.model_10)
        words = "better" if v.beats else "no better"
        yield [label, name, str(v.tasks), *(f"{figure:.3f}" for figure in figures), f"{v.spread:.2f}", words]


Key = Callable[[DeviceTable], str]
GPU_SPLITS: dict[str, Key] = {
    "its architecture": lambda table: architecture(table.device),
    "its family": lambda table: table.family,
    "its vendor": vendor,
}
CPU_SPLITS: dict[str, Key] = {
    "its instruction set": instruction_set,
    "its kind": lambda table: table.family,
    "its host": host,
}


def judged(
    devices_left_out: Sequence[HeldOutTable], learned: Sequence[DeviceTable], splits: Mapping[str, Key]
) -> tuple[dict[str, list[HeldOutTable]], list[list[str]]]:
    """Held-out tables of all splits, and the lines of the page."""
    every = {"its device": list(devices_left_out)}
    every |= {label: held_out(learned, key, print) for label, key in splits.items()}
    lines: list[list[str]] = []
    for label, left_out in every.items():
        lines += rows_of(label, verdicts(left_out, lambda item: item.table.family))
    for label, left_out in every.items():
        lines += rows_of(label, verdicts(left_out, lambda _: "**all**"))
    return every, lines


def needed(expected: Scores, table: DeviceTable, rows_of_op: Sequence[Rows]) -> int:
    """Kernels in the order of an expectation until the best of them is within ``WITHIN``, shapes of one op together.

    0 where no kernel was timed at every shape.
    """
    kernels = sorted({table.trials[row].kernel for rows in rows_of_op for row in rows.tolist()})
    at = {kernel: index for index, kernel in enumerate(kernels)}
    scores, rates = (np.full((len(rows_of_op), len(kernels)), np.nan) for _ in range(2))
    for shape, rows in enumerate(rows_of_op):
        columns = [at[table.trials[row].kernel] for row in rows.tolist()]
        scores[shape, columns], rates[shape, columns] = expected[rows], table.labels[rows]
    whole = ~np.isnan(rates).any(axis=0)  # timed at every shape
    scores, rates = scores[:, whole], rates[:, whole]
    if not whole.any():
        return 0
    order = np.argsort(-scores.mean(axis=0), kind="stable")
    best = np.maximum.accumulate(rates[:, order], axis=1)
    lost = np.exp((best[:, -1:] - best).mean(axis=0)) - 1.0
    return int(np.argmax(lost <= WITHIN)) + 1


def within(left_out: Sequence[HeldOutTable]) -> Iterator[list[str]]:
    """Lines of the table of measurements, by family: those of the analysis, of the model, and their ratio."""
    counts: dict[str, tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}
    for item in left_out:
        table, share = item.table, chosen_share(left_out, item.table)
        prior = np.asarray(table.frame["expected_log"], np.float64)
        learned = prior + share * item.correction
        ops: dict[str, list[Rows]] = {}
        of_ops, of_shapes = counts.setdefault(table.family, ([], []))
        for rows in judged_tasks(table):
            trial = table.trials[int(rows[0])]
            ops.setdefault(f"{trial.op.name} {trial.threads} {trial.weights}", []).append(rows)
            of_shapes.append((needed(prior, table, [rows]), needed(learned, table, [rows])))
        of_ops += [(needed(prior, table, each), needed(learned, table, each)) for each in ops.values()]
    for family, (of_ops, of_shapes) in sorted(counts.items()):
        of_ops = [pair for pair in of_ops if min(pair)]
        cells = [family, str(len(of_ops))]
        for pairs in (of_ops, of_shapes):
            analysis, model = np.mean(pairs, axis=0).tolist() if pairs else (0.0, 0.0)
            cells += [f"{analysis:.1f}", f"{model:.1f}", f"{analysis / model:.1f}x"] if pairs else ["-"] * 3
        yield cells


def ship(tables: Sequence[DeviceTable], left_out: Mapping[str, list[HeldOutTable]], out: Path) -> str:
    """Write the model of all tables; a sentence on it.

    Where hosts were held out, a CPU of another host is judged by them.
    """
    share = chosen_share(left_out["its device"])
    forest = fit_shared(tables, share=share)
    forest.facts = facts_of(tables, verdicts(left_out["its device"], lambda item: item.table.family), share)
    if "its host" in left_out:
        elsewhere = facts_of(tables, verdicts(left_out["its host"], lambda item: item.table.family), share)["verdicts"]
        forest.facts["elsewhere"] = elsewhere
    state, texts = forest.state()
    out.parent.mkdir(parents=True, exist_ok=True)
    write(out, Saved(kind="forest", state=state, texts=tuple(map(slim, texts)), columns=forest.uses))
    rows = sum(len(table) for table in tables if table.timed)
    winners = len({table.device.id for table in tables if not table.timed})
    return (
        f"The shipped model: {rows:,} timings, {len({t.device.id for t in tables if t.timed})} devices, "
        + (f"known winners of {winners} devices, " if winners else "")
        + f"share {share}."
    )


def main() -> None:
    """Judge, ship, write the page."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--data", type=Path)
    words.add_argument("--cpu", action="store_true", help="the model of CPUs")
    words.add_argument("--out", type=Path)
    words.add_argument("--page", type=Path)
    options = words.parse_args()
    tables = cpu_tables() if options.cpu else tables_of(options.data)
    winners = [] if options.cpu or options.data is None else winners_of(options.data)
    learned, devices_left_out, chosen = chosen_sources(tables, winners, print)
    left_out, lines = judged(devices_left_out, learned, CPU_SPLITS if options.cpu else GPU_SPLITS)
    about = ship(learned, left_out, options.out or shipped_file(CPUS if options.cpu else GPUS))
    about = " ".join([about, *(f"{line[0].upper()}{line[1:]}." for line in chosen)])
    text = [CPU_HEAD if options.cpu else HEAD, "", about, "", *markdown([COLUMNS, *lines])]
    if options.cpu:
        heads = ["family", "ops", "op: analysis", "model", "saved", "shape: analysis", "model", "saved"]
        text += ["", WITHIN_HEAD, "", *markdown([heads, *within(devices_left_out)])]
    page = options.page or (CPU_PAGE if options.cpu else PAGE)
    page.write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
