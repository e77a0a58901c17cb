"""What a fleet costs and gains: ``python -m tests.bench.fleet throughput|engine [--out docs/results/fleet.md]``.

``throughput``: the default workload for AVX-512 alone, then for AVX-512 and AVX2 at once, each on a node of its own. Timings
are replayed: they sleep for what a short trial takes. ``engine``: seconds until a node's device takes trials, and what a
trial takes over Ray beside its timing, the same sleep. Run each on a quiet machine; a part takes two minutes.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from haotuner.backends.index import backend_for
from haotuner.fleet.connection import Connection
from haotuner.fleet.engine import RayEngine
from haotuner.fleet.offer import folder_of
from haotuner.fleet.start import HERE, fleet_at
from haotuner.hw_profiles.find import find_device
from haotuner.spec.record import Record
from haotuner.spec.traffic import arrivals_of
from haotuner.tuning.device_tasks import produce_each
from haotuner.tuning.request import Request, ops_asked
from tests.bench.markdown import markdown_table
from tests.bench.sections import section_written
from tests.fleet.local_fleet import AVX2, AVX512, REPLAY, lab_of, local_fleet, patient, trials
from tests.fleet.replay_programs import TIMING_WORD

PAGE = Path("docs/results/fleet.md")
LEAST_GAIN, MOST_SHARE, MOST_START_S = 1.8, 0.03, 20.0  # the bars
BUDGET_S, TIMING_S = 30.0, 0.12  # of each run; of a timing, as in the simulation of a fleet
FIRST = 20  # records that are left out of a rate: a search begins with selection
CALLS = 120
_HEAD = """# A fleet: what it costs and gains

Made by `python -m tests.bench.fleet`, a part at a time, on {cores} cores of {machine}, Python {python}."""


class Measured(Exception):
    """All is measured: the pack that would come next is of no interest here."""


def rate(directory: Path, connection: Connection, names: Sequence[str]) -> float:
    """Records a second of a run over these devices, each record's moment taken where the tuner gets it."""
    moments: dict[str, list[float]] = {name: [] for name in names}
    by_id: dict[str, str] = {}

    def watch(op: str, phase: str, record: Record | None) -> bool:
        if phase.startswith("building"):
            raise Measured
        if record is not None:
            moments[by_id[record.device_id]].append(time.monotonic())
        return True

    engines = [RayEngine(connection, name, backend_for, programs=REPLAY) for name in names]
    by_id |= {engine.device.id: name for engine, name in zip(engines, names, strict=True)}
    arrivals = arrivals_of("dynamic")
    requests = [
        Request(
            ops=ops_asked(None, None, arrivals), arrivals=arrivals, device=name, threads=(1,), budget_s=BUDGET_S,
            out=directory / folder_of(name), db=f"sqlite:///{directory}/{len(names)}.db", environment=dict(os.environ),
        )
        for name in names
    ]  # fmt: skip
    with suppress(Measured):
        produce_each(requests, engines, watch)
    return sum((len(at) - FIRST) / (at[-1] - at[FIRST]) for at in moments.values())


def throughput() -> tuple[str, bool]:
    """The section of two nodes, and whether the bar is met."""
    with (
        tempfile.TemporaryDirectory() as folder,
        local_fleet(AVX512, AVX2, environment={TIMING_WORD: str(TIMING_S)}) as fleet,
        Connection(fleet.address) as connection,
    ):
        alone = rate(Path(folder), connection, (AVX512,))
        both = rate(Path(folder), connection, (AVX512, AVX2))
    rows = [("one", AVX512, f"{alone:.2f}", ""), ("two", f"{AVX512}, {AVX2}", f"{both:.2f}", f"{both / alone:.2f}x")]
    lines = markdown_table(("nodes", "devices", "measurements a second", "gain"), rows)
    words = (
        f"The default workload, {BUDGET_S:.0f} s. A timing is replayed and takes {TIMING_S * 1000:.0f} ms; builds are, too. "
        f"Search and models are real, in the tuner's one process. The bar: {LEAST_GAIN}x."
    )
    return "\n".join((words, "", *lines)), both >= LEAST_GAIN * alone


def engine() -> tuple[str, bool]:
    """The section of the engine's own costs, and whether the bars are met."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        find_device(AVX2, cache_dir=folder)  # a host's rates are measured once, by whichever command comes first
        begin = time.perf_counter()
        environment = {**os.environ, TIMING_WORD: str(TIMING_S)}
        connection = stack.enter_context(fleet_at(HERE, (AVX2,), environment=environment, cache=folder))
        store = stack.enter_context(patient(f"sqlite:///{folder}/r.db"))
        lab = stack.enter_context(lab_of(RayEngine(connection, AVX2, backend_for, programs=REPLAY), store))
        start_s = time.perf_counter() - begin
        requested = trials(AVX2, CALLS)
        lab.measure(requested[:4])  # their four kernels are built and verified
        begin = time.perf_counter()
        lab.measure(requested[4:])
        trial_s = (time.perf_counter() - begin) / (CALLS - 4)
    share = 1 - TIMING_S / trial_s
    rows = [
        ("from the command to a device that takes trials, its rates known", f"{start_s:.1f} s", f"{MOST_START_S:.0f} s"),
        (
            f"a trial that is timed for {TIMING_S * 1000:.0f} ms, with its call and its record",
            f"{trial_s * 1000:.1f} ms",
            "",
        ),
        ("the engine's share of it", f"{share:.1%}", f"{MOST_SHARE:.0%}"),
    ]
    return "\n".join(markdown_table(("what", "takes", "bar"), rows)), start_s <= MOST_START_S and share <= MOST_SHARE


PARTS = {"throughput": ("Two nodes", throughput), "engine": ("The engine's own costs", engine)}


def main() -> int:
    """Write a part's section; 1 if it misses its bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--out", type=Path, default=PAGE)
    arguments = parser.parse_args()
    heading, measure = PARTS[arguments.part]
    body, met = measure()
    if not arguments.out.exists():
        machine = f"{platform.system()} {platform.machine()}"
        head = _HEAD.format(cores=len(os.sched_getaffinity(0)), machine=machine, python=platform.python_version())
        arguments.out.write_text(head + "\n", encoding="utf-8")
    section_written(arguments.out, heading, body)
    print(body)
    return int(not met)


if __name__ == "__main__":
    raise SystemExit(main())
