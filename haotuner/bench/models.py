"""The race of a whole model: requests as traffic brings them, each contender in a process of its own."""

from __future__ import annotations

import csv
import itertools
import math
import re
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.bench.contender import OURS, Setting, child_environment
from haotuner.bench.machine_load import CONTENDED_CORES, foreign_cores, read
from haotuner.bench.model_child import PROGRAM, RANGE
from haotuner.bench.processes import ExclusiveRunner, Responder, greetings
from haotuner.errors import UsageError
from haotuner.host.files import open_regular
from haotuner.isolate.child import Child
from haotuner.partition.dim_ranges import parts_of, span_of
from haotuner.runtime.model import Chain, Model
from haotuner.runtime.schedule import ExecutionPlan
from haotuner.spec.shape import Span
from haotuner.spec.traffic import SIZE_LIMIT_BYTES, is_trace


@dataclass(frozen=True, slots=True)
class ShapeConstraints:
    """``alike``: dimensions that are drawn as another one, which comes first; ``schedules``: of parts that always run."""

    alike: Mapping[str, str] = field(default_factory=dict)
    schedules: Sequence[ExecutionPlan] = ()

    def refused(self, sizes: Mapping[str, int]) -> str:
        """Reason that the model takes no such request, as far as sizes tell; empty where it does."""
        for schedule in self.schedules:
            if set(schedule.dims) <= sizes.keys():
                try:
                    schedule.values({name: sizes[name] for name in schedule.dims})
                except UsageError as error:
                    return str(error)
        return ""


def shape_constraints_of(model: Model | Chain, dims: Sequence[str]) -> ShapeConstraints:
    """Of the dimensions that a request decides. What one side of a branch joins is drawn alike, and refuses nothing."""
    if isinstance(model, Chain):
        always = set(model.always)
        every = {name: segment.schedule for name, segment in model.segments.items()}
    else:
        always, every = {model.name}, {model.name: model.schedule}
    alike: dict[str, str] = {}
    for schedule in every.values():
        for pair in schedule.equal:
            lines = [schedule.sizes[position] for position in pair]
            if all(line[0] == "dim" and line[1] in dims for line in lines):
                first, other = sorted((_first(alike, str(line[1])) for line in lines), key=list(dims).index)
                if first != other:
                    alike[other] = first
    return ShapeConstraints(
        {name: _first(alike, name) for name in alike}, [item for name, item in every.items() if name in always]
    )


def _first(alike: Mapping[str, str], name: str) -> str:
    while name in alike:
        name = alike[name]
    return name


MODEL_PEERS = ("onnxruntime", "openvino", "torch")
PROGRAMS = ".pt2"  # what ``torch.export.save`` writes, for torch alone; the others read ONNX
TURNS = 9  # a contender's time at a size is spent in as many parts: a host changes its speed by a third for seconds
DRAWN = 12  # requests of a range
TRIES = 100  # draws for each of them, where a model takes few
NUMBER = re.compile(r"-?\d+(\.\d*)?(e-?\d+)?")


def requests_of(
    text: str, dims: Sequence[str], seed: int = 0, data: Sequence[str] = (), agreed: ShapeConstraints | None = None
) -> list[dict[str, int]]:
    """Requests of ``--shapes``: rows of a trace with a column for each dimension, or drawn of ranges, log-uniformly.

    ``data``: dimensions that the data tell; what the text says of them is no request's. ``agreed``: what the model asks of
    sizes; of ranges such are drawn. A model without dimensions has one request, of which the text says nothing. UsageError
    where there are none, or the text says too much or too little.
    """
    if is_trace(text):
        return _rows(Path(text), dims)
    spans = {}
    for name, sizes in parts_of(text):
        if name not in data:
            spans[name] = span_of(name, sizes) if name in dims else None
    if set(spans) != set(dims):
        has = f"the dimensions {', '.join(dims)}" if dims else "no dimensions"
        raise UsageError(f"--shapes {text!r} gives {', '.join(spans) or 'nothing'}; the model has {has}")
    return _drawn({name: span for name in dims if (span := spans[name]) is not None}, seed, agreed or ShapeConstraints())


def _drawn(spans: Mapping[str, Span], seed: int, agreed: ShapeConstraints) -> list[dict[str, int]]:
    """Requests of ranges, in the order of these; all of them where they are few."""
    samples = {name: list(span.sample(24)) for name, span in spans.items() if name not in agreed.alike}
    for name, first in agreed.alike.items():
        samples[first] = [size for size in samples[first] if size in spans[name]]
        if not samples[first]:
            raise UsageError(
                f"--shapes: the model joins {first} and {name}, whose ranges share no size; give both one range"
            )
    draw = np.random.default_rng(seed)
    if math.prod(len(values) for values in samples.values()) <= DRAWN:
        result: Iterator[tuple[int, ...]] = itertools.product(*samples.values())
    else:
        result = (tuple(int(draw.choice(sample)) for sample in samples.values()) for _ in range(DRAWN * TRIES))
    chosen: list[dict[str, int]] = []
    why = ""
    for sizes_ in result:
        own = dict(zip(samples, map(int, sizes_), strict=True))
        sizes = {name: own[agreed.alike.get(name, name)] for name in spans}
        refusal = agreed.refused(sizes)
        chosen += [] if refusal else [sizes]
        why = refusal or why
        if len(chosen) == DRAWN:
            break
    if not chosen:
        raise UsageError(
            f"--shapes: no request that was drawn is one that the model takes: {why}. Give a trace of such sizes"
        )
    return chosen


def parse_inputs(text: str, inputs: Sequence[str], dims: Sequence[str]) -> dict[str, list[str]]:
    """Parsed ``--inputs``, of inputs whose elements matter: ``scales=0,1,0;lengths=seq;ids=0..30521``.

    Numbers, dimensions, or the range that each element is drawn from, both ends in it.
    """
    result: dict[str, list[str]] = {}
    for part in filter(None, text.split(";")):
        name, _, answer = (part.strip() for part in part.partition("="))
        result[name] = [part.strip() for part in answer.split(",")]
        ranged = RANGE.fullmatch(answer)
        backward = ranged is not None and int(ranged[1]) > int(ranged[2])
        wrong = backward or not ranged and [item for item in result[name] if item not in dims and not NUMBER.fullmatch(item)]
        if name not in inputs or wrong:
            raise UsageError(
                f"--inputs {part!r}: write INPUT=NUMBERS, a range or dimensions, such as lengths=seq, ids=0..30521 "
                f"or scales=0,1,0; the model has the inputs {', '.join(inputs)} "
                f"and the dimensions {', '.join(dims) or 'none'}"
            )
    return result


def dims_of(model: Model | Chain) -> tuple[str, ...]:
    """Dimensions that a request decides; those that its data tell are not among them."""
    return tuple(dict.fromkeys(extent for end in model.inputs for extent in end.shape if isinstance(extent, str)))


def drawn_ends(model: Model | Chain, inputs: Collection[str]) -> list[dict[str, Any]]:
    """Specs that a request's inputs are drawn from, for ``feeds_of``; no input with a default that is not ``inputs``."""
    every = (end for end in model.inputs if end.default is None or end.name in inputs)
    return [{"name": end.name, "dtype": end.dtype.name, "shape": list(end.shape)} for end in every]


def files_of(files: Sequence[Path], peers: Sequence[str]) -> dict[str, Path]:
    """The file that each peer reads; peers without one are not there. UsageError for two files of a kind."""
    programs = [file for file in files if file.suffix == PROGRAMS]
    models = [file for file in files if file.suffix != PROGRAMS]
    for several in (programs, models):
        if len(several) > 1:
            raise UsageError(
                f"--file {several[0]} and --file {several[1]}: give one ONNX file, which ONNX Runtime and OpenVINO read, "
                f"and one {PROGRAMS} of torch.export, which torch reads"
            )
    return {peer: program for peer in peers for program in (programs if peer == "torch" else models)}


def _rows(path: Path, dims: Sequence[str]) -> list[dict[str, int]]:
    try:
        with TextIOWrapper(open_regular(path, SIZE_LIMIT_BYTES), encoding="utf-8-sig", newline="") as lines:
            rows = list(csv.DictReader(lines))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"trace {path} cannot be read: {error}") from error
    result = []
    for number, row in enumerate(rows, 2):
        try:
            sizes = {name: int(row[name]) for name in dims}
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"trace {path}, line {number}: a whole number is needed for each of {', '.join(dims)}"
            ) from error
        if min(sizes.values(), default=1) < 1:
            raise UsageError(f"trace {path}, line {number}: sizes begin at 1")
        result.append(sizes)
    if not result:
        raise UsageError(f"trace {path} has no rows")
    return result


@contextmanager
def contenders(
    model: Model | Chain,
    files: Sequence[Path],
    requests: Sequence[Mapping[str, int]],
    peers: Sequence[str],
    *,
    threads: int,
    environment: Mapping[str, str],
    input_values: Mapping[str, Sequence[str]] | None = None,
    watch: Callable[[str], None] = lambda _: None,
) -> Iterator[tuple[dict[str, Child], dict[str, float]]]:
    """Ours and each peer that has a file (`files_of`), loaded, in processes of their own; and milliseconds of each load.

    Peers that cannot load are left out; HaotunerError with its words where ours cannot.
    """
    inputs = drawn_ends(model, input_values or {})
    config = {"pack": str(model.pack.path), "model": model.name, "inputs": inputs, "threads": threads,
            "requests": [dict(request) for request in requests], "given": dict(input_values or {})}  # fmt: skip
    read = {OURS: "", **{peer: str(file) for peer, file in files_of(files, peers).items()}}
    surroundings = child_environment(environment, Setting(threads=threads))
    children = {
        name: Child(PROGRAM, {**config, "contender": name, "file": file}, environment=surroundings, rests=True)
        for name, file in read.items()
    }
    try:
        watch(f"loading {', '.join(read)}")
        loads = {name: float(greeting["load_ms"]) for name, greeting in greetings(children, watch).items()}
        yield {name: children[name] for name in loads}, loads
    finally:
        for child in children.values():
            child.close()


def race(
    model: Model | Chain,
    files: Sequence[Path],
    requests: Sequence[Mapping[str, int]],
    peers: Sequence[str],
    *,
    threads: int,
    seconds: float,
    environment: Mapping[str, str],
    input_values: Mapping[str, Sequence[str]] | None = None,
    watch: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Times of ours and of each peer that has a file (`files_of`). HaotunerError with a contender's words where ours fails.

    ``input_values``: what ``parse_inputs`` read. ``seconds``: of each contender at each request.
    """
    with contenders(
        model, files, requests, peers, threads=threads, environment=environment, input_values=input_values, watch=watch
    ) as (
        racing,
        loads,
    ):
        about = f"{len(requests)} requests, some {len(requests) * len(loads) * seconds:.0f} s"
        watch(f"racing {', '.join(loads)} in turns: {about}")
        result = in_turns(racing, len(requests), seconds, watch)
    for name, outcome in result.items():
        outcome["load_ms"] = loads[name]
    return _document(model.name, requests, result, [peer for peer in peers if peer not in result], threads)


def in_turns(
    contenders: Mapping[str, Responder], count: int, seconds: float, watch: Callable[[str], None] = lambda _: None
) -> dict[str, dict[str, Any]]:
    """First and steady microseconds of requests ``0 .. count-1`` by each contender; one runs, the others wait.

    First each request is answered once, in the order of the trace: what a size costs that was not seen before. Then each has
    ``TURNS`` turns, in an order that rotates; a turn's first call, whose caches the others used, is not counted.
    ``turns_us``: the median of each turn, for each request; ``steady_us``: the median of those; ``contended``: whether other
    programs were busy meanwhile. A peer that fails is left out; HaotunerError where ours does.
    """
    turns = ExclusiveRunner(contenders, watch)
    pids = [pid for contender in contenders.values() if (pid := getattr(contender, "pid", None)) is not None]
    contended: list[bool] = []
    first: dict[str, list[float]] = {name: [] for name in contenders}
    medians: dict[str, list[list[float]]] = {name: [[] for _ in range(count)] for name in contenders}
    for index in range(count):
        request = {"do": "answer", "place": index, "calls": 1, "seconds": 0.0}
        for name, answer in turns.round(index, request).items():
            first[name] += answer["us"]
    for position in range(count):
        request = {"do": "answer", "place": position, "calls": 2, "seconds": seconds / TURNS}
        before = read(pids)
        for turn in range(TURNS):
            for name, answer_ in turns.round(turn, request).items():
                medians[name][position].append(statistics.median(answer_["us"][1:]))
        contended.append(foreign_cores(before, read(pids)) > CONTENDED_CORES)
        ms = statistics.median(medians[OURS][position]) / 1e3
        watch(
            f"{position + 1} of {count} requests: ours {ms:,.2f} ms{', other programs were busy' if contended[-1] else ''}"
        )
    return {
        name: {
            "first_us": first[name],
            "turns_us": medians[name],
            "steady_us": [statistics.median(median) for median in medians[name]],
            "peak_bytes": answer["bytes"],
            "contended": contended,
        }
        for name, answer in turns.round(0, {"do": "peak"}).items()
    }


def paired(peer: Sequence[float], ours: Sequence[float]) -> float:
    """The median of peer over ours, turn by turn: what lies next to each other in time is compared."""
    return statistics.median(first / own for first, own in zip(peer, ours, strict=True))


def _document(
    name: str, requests: Sequence[Mapping[str, int]], outcomes: Mapping[str, Any], missing: Sequence[str], threads: int
) -> dict[str, Any]:
    ours, peers = outcomes[OURS], {peer: outcome for peer, outcome in outcomes.items() if peer != OURS}
    rows = [
        {
            "model": name, "shape": dict(sizes), "threads": threads, "first_us": ours["first_us"][at],
            "steady_us": ours["steady_us"][at],
            "contended": ours["contended"][at],
            "peers": {
                p: {"first_us": outcome["first_us"][at], "steady_us": outcome["steady_us"][at],
                    "ratio": paired(outcome["turns_us"][at], ours["turns_us"][at])} for p, outcome in peers.items()
            },
        }
        for at, sizes in enumerate(requests)
    ]  # fmt: skip
    quiet = [row for row in rows if not row["contended"]]
    ratios = [min(outcome["ratio"] for outcome in row["peers"].values()) for row in quiet if row["peers"]]
    steady = sorted(row["steady_us"] for row in rows)
    return {
        "rows": rows,
        "missing": list(missing),
        "summary": {
            "geomean_vs_best": math.exp(statistics.fmean(map(math.log, ratios))) if ratios else None,
            "geomean_vs": {
                peer: math.exp(statistics.fmean(math.log(row["peers"][peer]["ratio"]) for row in quiet))
                for peer in peers
                if quiet
            },
            "contended": len(rows) - len(quiet),
            "stream_vs": {peer: sum(outcome["first_us"]) / sum(ours["first_us"]) for peer, outcome in peers.items()},
            "first_vs_best": min((sum(outcome["first_us"]) for outcome in peers.values()), default=0.0)
            / sum(ours["first_us"])
            or None,
            "p50": statistics.median(steady),
            "p99": steady[min(len(steady) - 1, int(0.99 * len(steady)))],
            "load_ms": {who: outcome["load_ms"] for who, outcome in outcomes.items()},
            "peak_bytes": {who: outcome["peak_bytes"] for who, outcome in outcomes.items()},
        },
    }
