"""MIOpen's find databases: convolution problems, each with the times in ms of several solvers.

Two line formats, told apart entry by entry (ROCm/MIOpen, src/kernels/*.HIP.fdb.txt.bz2):

- ``problem=solver:time,workspace,algorithm;...`` lists every solver that was timed;
- ``problem=algorithm:solver,time,workspace,...;...``, older, the fastest of each algorithm.
"""

from __future__ import annotations

import math
import re
import statistics
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from haotuner.errors import UnknownDevice, UsageError
from haotuner.hw_profiles.table import Known, architectures, known_arch, known_named
from haotuner.microkernels.imported.solvers import FAMILY, algorithm_of
from haotuner.records.importing import Loaded
from haotuner.records.text import read_text
from haotuner.spec.composition import Composition
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Record, Timed, Trial
from haotuner.spec.shape import Shape

_TEXT = re.compile(
    r"(?P<image>[0-9]+(?:-[0-9]+){2,3})-(?P<filter>[0-9]+x[0-9]+(?:x[0-9]+)?)-(?P<out>[0-9]+(?:-[0-9]+){2,3})-(?P<batch>[0-9]+)"
    r"-(?P<pad>[0-9]+(?:x[0-9]+)*)-(?P<stride>[0-9]+(?:x[0-9]+)*)-(?P<dilation>[0-9]+(?:x[0-9]+)*)-(?P<bias>[0-9]+)"
    r"-(?P<layout>[A-Z]+)(?:-[A-Z]+)*-(?P<dtype>[A-Z0-9]+(?:x[0-9]+)?)-(?P<direction>[FBW])(?:_g(?P<groups>[0-9]+))?"
)
BYTES = {"FP32": 4.0, "FP16": 2.0, "BF16": 2.0, "INT8": 1.0, "FP64": 8.0}
LIMIT = 2**40  # of an extent: beyond it a text is damaged, not a convolution


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvProblem:
    """One convolution. ``image`` and ``out`` are channels, then extents from the outermost in.

    Of the backward directions MIOpen names first what is read, the gradient of the output.
    """

    image: tuple[int, ...]
    filter: tuple[int, ...]
    out: tuple[int, ...]
    batch: int
    pad: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    layout: str
    dtype: str
    direction: str
    groups: int

    @staticmethod
    def parse(text: str) -> ConvProblem:
        """The problem of that text.

        Raises:
            ValueError: it is not such a text, names an extent of 0, a type that is not known, or unlike numbers of axes.
        """
        match = _TEXT.fullmatch(text)
        if not match:
            raise ValueError("not a convolution's text (C-H-W-filter-K-outH-outW-N-pad-stride-dilation-...)")
        image, out = (tuple(map(int, match[name].split("-"))) for name in ("image", "out"))
        window, pad, stride, dilation = (
            tuple(map(int, match[n].split("x"))) for n in ("filter", "pad", "stride", "dilation")
        )
        groups, batch = int(match["groups"] or 1), int(match["batch"])
        if len(image) != len(out) or len(image) != len(window) + 1:
            raise ValueError("image, filter and result differ in their number of axes")
        if not all(0 < extent < LIMIT for extent in (*image, *out, *window, *stride, *dilation, batch, groups)):
            raise ValueError(f"an extent is 0 or beyond 2^{LIMIT.bit_length() - 1}")
        if match["dtype"] not in BYTES:
            raise ValueError(f"type {match['dtype']}: known are {', '.join(BYTES)}")
        return ConvProblem(
            image=image, filter=window, out=out, batch=batch, pad=pad, stride=stride, dilation=dilation,
            layout=match["layout"], dtype=match["dtype"], direction=match["direction"], groups=groups,
        )  # fmt: skip

    @property
    def result(self) -> tuple[int, ...]:
        """Channels and extents of what the forward convolution writes."""
        return self.out if self.direction == "F" else self.image

    @property
    def flops(self) -> float:
        """Multiply-adds count as two."""
        read = (self.image if self.direction == "F" else self.out)[0]
        return (
            2.0 * self.batch * math.prod(map(float, self.result)) * read * math.prod(map(float, self.filter)) / self.groups
        )

    @property
    def least_bytes(self) -> float:
        """Images, filter and result moved once."""
        images = self.batch * (math.prod(map(float, self.image)) + math.prod(map(float, self.out)))
        weights = float(self.image[0]) * self.out[0] * math.prod(map(float, self.filter)) / self.groups
        return (images + weights) * BYTES[self.dtype]


Ids = NDArray[np.int64]
Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverTable:
    """One row a (problem, solver) with a time; rows of a problem lie together, in the order of the file."""

    device: Known
    problems: tuple[str, ...]  # each once
    solvers: tuple[str, ...]  # each once
    problem: Ids  # of each row, among ``problems``; ascending
    solver: Ids  # of each row, among ``solvers``
    ms: Times
    workspace: Times  # bytes that each row's solver asks for
    left_out: Counter[str] = field(default_factory=Counter)  # reason to number of times or lines
    notes: tuple[str, ...] = ()  # what else is odd about the file

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.ms)

    def starts(self) -> Ids:
        """First row of each problem, and the end behind the last; shape ``(len(problems) + 1,)``."""
        return np.searchsorted(self.problem, np.arange(len(self.problems) + 1))

    def best_ms(self) -> Times:
        """Fastest time of each problem; shape ``(len(problems),)``."""
        return np.minimum.reduceat(self.ms, self.starts()[:-1]) if len(self.ms) else np.array([])


_Problem = dict[str, list[tuple[float, float]]]  # solver to milliseconds and bytes of workspace, as often as listed
_WGP = "rdna"  # HIP counts its units in pairs
AGREE = 2.0  # one solver on one problem, listed twice: a busy machine, not another measurement
# Of the peak of its lanes, what the best solver of large problems reaches in the middle. Five files: 0.1 to 1.2 (Winograd
# saves multiplications, units for small matrices have more). A thousandth or a thousandfold is another unit.
_SLOWEST, _FASTEST = 0.003, 30.0
# Over the same peak, what no solver can reach: units for small matrices make 8 times of it, Winograd saves 2.25 times.
_IMPOSSIBLE = 30.0
_LARGE = 1e9  # flops from which a problem keeps a device busy
_CLOCK_MHZ = 1500.0  # where a device's is not known
_FORMATS = ("solver:time,...", "algorithm:solver,time,...")


def is_find_database(path: Path) -> bool:
    """True if a file's name says that it is a find database."""
    return ".fdb.txt" in path.name


def read_find_database(path: Path, *, device: str | None = None) -> SolverTable:
    """The usable times of one file; what is left out is counted.

    Args:
        path: the file, packed by bzip2 or gzip or not, whole or cut.
        device: overrides what the file's name says, such as ``gfx90a6e`` or a profile's id.

    Raises:
        EnvironmentMissing: the file cannot be read.
        UnknownDevice: neither its name nor ``device`` says an architecture that is known.
        UsageError: no usable line, or times that are not milliseconds.
    """
    known = device_of(device or path.name.partition(".")[0], path)
    text, stopped = read_text(path, "a find database of MIOpen")
    left_out: Counter[str] = Counter()
    notes: list[str] = []
    lines = text.splitlines()
    if stopped:
        notes.append(f"cut short: {stopped}")
        lines = lines[:-1]  # it may have gone on
    problems: dict[str, _Problem] = {}
    parsed: dict[str, ConvProblem] = {}
    formats: Counter[str] = Counter()
    for line in filter(None, map(str.strip, lines)):
        key, sign, entries = line.partition("=")
        if not sign:
            left_out["lines without '='"] += 1
            continue
        if key not in parsed:
            try:
                parsed[key] = ConvProblem.parse(key)
            except ValueError as error:
                left_out[f"problems: {error}"] += 1
                continue
        result = problems.setdefault(key, {})
        for solver, ms, workspace in _entries(entries, formats, left_out):
            result.setdefault(solver, []).append((ms, workspace))
    if len(formats) > 1:
        formats_text = ", ".join(f"{count} as {name}" for name, count in formats.most_common())
        notes.append(f"two line formats in one file, both read: {formats_text}")
    table = _table(known, problems, left_out, tuple(notes))
    if not len(table):
        why = "; ".join(f"{reason} ({count})" for reason, count in left_out.most_common(3)) or "it has no lines"
        raise UsageError(f"{path}: not one usable time of a solver: {why}")
    _in_milliseconds(path, table, parsed)
    return _without_impossible(table, parsed)


MOST_PROBLEMS = 600  # of a file that become records: a model learns from 2,500 rows of a device, and 30,000 fill a gigabyte
FEWEST_SOLVERS = 3  # of a problem, below which it ranks nothing
SLOWEST_TIME = 100.0  # times the best of a problem, beyond which nothing is ranked by it, and it looks like another unit
LEAST_MS = 0.05  # of a problem's best time: shorter ones measure the launch
_TYPES = {"FP32": "", "FP16": ",dtype=fp16", "BF16": ",dtype=bf16"}
_LAYOUTS = {"NCHW": "", "NHWC": ",layout=nhwc"}


def load_find_database(path: Path, *, device: str | None = None, seed: int = 0) -> Loaded:
    """Solvers' times of forward convolutions in two dimensions, as records of the family ``miopen_conv``.

    Of a large file ``MOST_PROBLEMS`` are drawn; the same file gives the same ones.

    Raises:
        EnvironmentMissing, UnknownDevice, UsageError: as ``read_find_database``; UsageError too where no problem is left.
    """
    table = read_find_database(path, device=device)
    refused: Counter[str] = Counter(table.left_out)
    starts, best = table.starts(), table.best_ms()
    problems: list[tuple[int, Op, Shape]] = []
    for at, text in enumerate(table.problems):
        rows = int(starts[at + 1] - starts[at])
        if rows < FEWEST_SOLVERS or best[at] < LEAST_MS:
            refused["times of problems of fewer than three solvers, or of less than 0.05 ms"] += rows
        elif (op := _forward(ConvProblem.parse(text))) is None:
            refused["times of problems that are no forward convolution in two dimensions that haotuner has"] += rows
        else:
            problems.append((at, *op))
    chosen = sorted(np.random.default_rng(seed).permutation(len(problems))[:MOST_PROBLEMS].tolist())
    fingerprint = f"miopen-{table.device.id}"
    records: list[Record] = []
    for index in chosen:
        at, problem, shape = problems[index]
        for row in range(int(starts[at]), int(starts[at + 1])):
            if table.ms[row] > SLOWEST_TIME * best[at]:
                refused["times more than a hundred times the best of their problem"] += 1
                continue
            solver = table.solvers[int(table.solver[row])]
            params = (("al", algorithm_of(solver)), ("ws", round(float(table.workspace[row]) / 1024)),
                      ("so", zlib.crc32(solver.encode()) % 2**31))  # fmt: skip
            trial = Trial.of(problem, Composition.of(MicroKernel(FAMILY, params).name), shape, cache="hot")
            us = float(table.ms[row]) * 1e3
            records.append(Record(trial=trial, outcome=Timed(samples_us=(us,)), device_id=table.device.id, when=0.0,
                                  fingerprint=fingerprint, session=f"import-{fingerprint}",
                                  facts={"source": path.name, "solver": solver}))  # fmt: skip
    if len(problems) > len(chosen):
        refused[f"times of problems beyond {MOST_PROBLEMS}, which were drawn"] += sum(
            int(starts[at + 1] - starts[at]) for index, (at, _, _) in enumerate(problems) if index not in set(chosen)
        )
    return Loaded(
        path=path,
        expected_row="time of a solver",
        records=tuple(records),
        rows=len(records) + sum(refused.values()),
        refused=refused,
        mapping=FAMILY,
        torn="; ".join(note for note in table.notes if "cut short" in note),
    )


def _forward(problem: ConvProblem) -> tuple[Op, Shape] | None:
    """The op and the shape that a problem is; None where there is none."""
    known = problem.direction == "F" and len(problem.filter) == 2 and problem.groups == 1
    if not known or problem.dtype not in _TYPES or problem.layout not in _LAYOUTS:
        return None
    channels, height, width = problem.image
    options = "".join(
        f",{name}={'.'.join(map(str, pair))}" if len(set(pair)) > 1 else f",{name}={pair[0]}"
        for name, pair, usual in (("stride", problem.stride, 1), ("pad", problem.pad, 0), ("dilation", problem.dilation, 1))
        if set(pair) != {usual}
    )
    rows, columns = problem.filter
    text = f"conv2d:c={channels},f={problem.out[0]},r={rows},s={columns}{options}"
    try:
        op = Op.parse(text + _TYPES[problem.dtype] + _LAYOUTS[problem.layout])
        shape = Shape.of(b=problem.batch, h=height, w=width)
        extents = op.extents(shape)
    except (UsageError, ValueError):
        return None
    return (op, shape) if (extents["p"], extents["q"]) == problem.out[1:] else None


def device_of(text: str, path: Path) -> Known:
    """Known device that a file's name says: ``gfx906_60`` or, hexadecimal, ``gfx90878``.

    Raises:
        UnknownDevice: it says none, or an architecture that the table does not have.
    """
    if known := known_named(text):
        return known
    archs = sorted(architectures(), key=len, reverse=True)
    arch = next((name for name in archs if text.startswith(name) and name.startswith("gfx")), "")
    rest = text.removeprefix(arch)
    decimal = re.fullmatch(r"_([0-9]{1,4})", rest)
    hexadecimal = re.fullmatch(r"([0-9a-f]{1,3})", rest)
    if not arch or not (decimal or hexadecimal):
        raise UnknownDevice(
            f"{path}: {text!r} names no known AMD architecture and its number of units; name files as MIOpen does "
            "(gfx906_60, gfx90878), name the device with --device, or add its architecture (haotuner/hw_profiles/README.md)"
        )
    units = int(decimal[1]) if decimal else int(hexadecimal[1], 16) if hexadecimal else 0
    pairs = 2 if architectures()[arch]["generation"] == _WGP else 1
    known = known_arch(arch, units * pairs, name=text)
    if known is None or units < 1:
        raise UnknownDevice(f"{path}: {text!r} says {units} units of {arch}; name the device with --device")
    return known


def _entries(text: str, formats: Counter[str], left_out: Counter[str]) -> Iterator[tuple[str, float, float]]:
    """Solver, milliseconds and bytes of workspace of each usable entry."""
    for entry in filter(None, text.split(";")):
        first, colon, rest = entry.partition(":")
        cells = rest.split(",")
        older = first.startswith("miopenConvolution")
        if not colon or len(cells) < (2 if older else 1):
            left_out["entries that are neither solver:time,... nor algorithm:solver,time,..."] += 1
            continue
        solver, value = (cells[0], cells[1]) if older else (first, cells[0])
        try:
            ms = float(value)
        except ValueError:
            left_out["times that are no numbers"] += 1
            continue
        if not math.isfinite(ms) or ms <= 0:
            left_out["times of zero or less" if math.isfinite(ms) else "times that are not finite"] += 1
            continue
        formats[_FORMATS[older]] += 1
        bytes_of = cells[2:3] if older else cells[1:2]
        yield solver, ms, float(bytes_of[0]) if bytes_of and bytes_of[0].isdecimal() else 0.0


def _table(known: Known, problems: dict[str, _Problem], left_out: Counter[str], notes: tuple[str, ...]) -> SolverTable:
    names: dict[str, int] = {}
    rows: list[tuple[int, int, float, float]] = []
    names_: list[str] = []
    for key, problem in problems.items():
        usable = []
        for solver, entries in problem.items():
            times = [ms for ms, _ in entries]
            if max(times) > AGREE * min(times):
                left_out[f"times of one solver on one problem that are more than {AGREE:g} times apart"] += len(times)
                continue
            if len(times) > 1:
                left_out["further times of one solver on one problem, which agree"] += len(times) - 1
            at = names.setdefault(solver, len(names))
            usable.append((len(names_), at, statistics.median(times), max(workspace for _, workspace in entries)))
        if usable:
            names_.append(key)
            rows += usable
    columns = list(zip(*rows, strict=True)) if rows else [(), (), (), ()]
    return SolverTable(
        device=known,
        problems=tuple(names_),
        solvers=tuple(names),
        problem=np.array(columns[0], np.int64),
        solver=np.array(columns[1], np.int64),
        ms=np.array(columns[2], np.float64),
        workspace=np.array(columns[3], np.float64),
        left_out=left_out,
        notes=notes,
    )


def _in_milliseconds(path: Path, table: SolverTable, parsed: dict[str, ConvProblem]) -> None:
    """UsageError where the best times of large problems are not what milliseconds would be; no line says a unit."""
    peak = _peak(table.device)
    best = table.best_ms()
    shares = [
        problem.flops / (ms / 1e3) / peak
        for problem, ms in zip(map(parsed.__getitem__, table.problems), best.tolist(), strict=True)
        if problem.flops >= _LARGE and problem.dtype == "FP32"
    ]
    if len(shares) >= 10 and not _SLOWEST < statistics.median(shares) < _FASTEST:
        raise UsageError(
            f"{path}: the best times of {len(shares)} large problems reach {statistics.median(shares):.3g} of the peak of "
            f"{table.device.name} in the middle: not milliseconds, or another device; nothing was used"
        )


def _without_impossible(table: SolverTable, parsed: dict[str, ConvProblem]) -> SolverTable:
    """Times that would take many times the device's peak are slips of the clock, and would each be the best of a problem."""
    flops = np.array([parsed[text].flops for text in table.problems])
    sound = flops[table.problem] / (table.ms / 1e3) < _IMPOSSIBLE * _peak(table.device)
    if sound.all():
        return table
    table.left_out["times faster than the device can be"] += int((~sound).sum())
    selected, problem = np.unique(table.problem[sound], return_inverse=True)
    return replace(
        table,
        problems=tuple(table.problems[at] for at in selected.tolist()),
        problem=problem.astype(np.int64),
        solver=table.solver[sound],
        ms=table.ms[sound],
        workspace=table.workspace[sound],
    )


def _peak(device: Known) -> float:
    """Flops a second of all lanes, at the usual clock where the device's own is not known."""
    lanes = device.facts.get("wave_width", 64.0) * device.facts.get("fma_pipes", 1.0) * device.facts["compute_units"]
    return 2.0 * lanes * device.facts.get("clock_mhz", _CLOCK_MHZ) * 1e6
