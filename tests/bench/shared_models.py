"""``python -m tests.bench.shared_models --data FOLDER``: judges and ships the shared model of GPUs.

``FOLDER`` holds Kernel Tuner's caches; the H200's timings are in the tree. The tables of ``docs/results/transfer-shared.md``
leave out a device, an architecture, a family and a vendor in turn. The share of the correction is chosen for each held-out
table on other families of other devices. Our own families are judged with the H200's records out, their only device.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from haotuner.cli.transfer_input import caches_in, is_something_else
from haotuner.cost.model_file import Saved, write
from haotuner.errors import HaotunerError
from haotuner.hw_profiles.find import find_device
from haotuner.hw_profiles.profile import architecture
from haotuner.records.importing import load_kernel_tuner
from haotuner.records.timings import load_timings
from haotuner.spec.record import Record
from haotuner.transfer.device_table import DeviceTable
from haotuner.transfer.reading import read_records
from haotuner.transfer.shared_model import (
    HeldOutTable,
    Verdict,
    chosen_share,
    facts_of,
    fit_shared,
    held_out,
    runs_on_gpus,
    shipped_file,
    verdicts,
)
from tests.bench.own_records import FOLDER
from tests.bench.ship_models import slim
from tests.bench.transfer_use import markdown

PAGE = Path("docs/results/transfer-shared.md")
HEAD = """# One model for kernels of any family on any GPU

Made by `python -m tests.bench.shared_models --data FOLDER`. First picks and best of the first ten as shares of the best
throughput, means over tasks, the worst first pick beside them; nothing of what is named in the first column was learned
from. The share of the correction is chosen on other families of other devices. *Error*: one standard deviation of
log(predicted / measured) within a task."""
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
    return [table for table in read_records(records, find).tables if runs_on_gpus(table.device)]


def vendor(table: DeviceTable) -> str:
    """The maker of the table's device."""
    return "AMD" if table.device.kind == "hip" else "NVIDIA"


def rows_of(label: str, verdicts_by_name: dict[str, Verdict]) -> Iterator[list[str]]:
    """Lines of the page's table."""
    for name, v in verdicts_by_name.items():
        figures = (v.roofline, v.model, v.worst_roofline, v.worst_model, v.roofline_10, v.model_10)
        words = "better" if v.beats else "no better"
        yield [label, name, str(v.tasks), *(f"{figure:.3f}" for figure in figures), f"{v.spread:.2f}", words]


def judged(tables: Sequence[DeviceTable]) -> tuple[list[HeldOutTable], list[list[str]]]:
    """Devices held out, and the lines of all splits."""
    devices_left_out = held_out(tables, lambda table: table.device.id, print)
    splits = {
        "its architecture": held_out(tables, lambda table: architecture(table.device), print),
        "its family": held_out(tables, lambda table: table.family, print),
        "its vendor": held_out(tables, vendor, print),
    }
    lines = list(rows_of("its device", verdicts(devices_left_out, lambda left_out: left_out.table.family)))
    for label, left_out in splits.items():
        lines += rows_of(label, verdicts(left_out, lambda item: item.table.family))
    for label, left_out in {"its device": devices_left_out, **splits}.items():
        lines += rows_of(label, verdicts(left_out, lambda _: "**all**"))
    return devices_left_out, lines


def main() -> None:
    """Judge, ship, write the page."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--data", type=Path)
    words.add_argument("--out", type=Path, default=shipped_file())
    words.add_argument("--page", type=Path, default=PAGE)
    options = words.parse_args()
    tables = tables_of(options.data)
    devices_left_out, lines = judged(tables)
    share = chosen_share(devices_left_out)
    forest = fit_shared(tables, share=share)
    forest.facts = facts_of(tables, verdicts(devices_left_out, lambda left_out: left_out.table.family), share)
    state, texts = forest.state()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write(options.out, Saved(kind="forest", state=state, texts=tuple(map(slim, texts)), columns=forest.uses))
    rows = sum(len(table) for table in tables)
    about = f"The shipped model: {rows:,} timings, {len({t.device.id for t in tables})} devices, share {share}."
    options.page.write_text("\n".join([HEAD, "", about, "", *markdown([COLUMNS, *lines])]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
