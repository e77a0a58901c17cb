"""The closing lines of `haotuner tune MODEL.onnx`: a short race of the new pack against ONNX Runtime, at three requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from haotuner.bench.models import PROGRAMS, TURNS, dims_of, race
from haotuner.cli.output import counted, tell
from haotuner.cli.speed import OTHER_LOAD
from haotuner.errors import HaotunerError
from haotuner.partition.cost_estimate import predicted_us
from haotuner.runtime.pack import Pack
from haotuner.tuning.request import Request

if TYPE_CHECKING:
    from haotuner.partition.tasks import ModelTask
    from haotuner.tuning.session import Report

READ_ONNX = ("onnxruntime", "openvino")
DEFAULT_PEERS = READ_ONNX[:1]
QUICK_S, REQUEST_S = 10.0, 0.5  # of a race without loading, at most; and of a contender at a request
LEAST_CALLS = 1 + 2 * TURNS  # of a contender at a request, however slow it is


@dataclass(frozen=True, slots=True)
class ModelSpeed:
    """Rows of ``haotuner.bench.models.race`` for every model and thread count, and the peers that could not be raced."""

    rows: Sequence[Mapping[str, Any]]
    hints: Sequence[str]

    @property
    def document(self) -> Mapping[str, Any]:
        """The JSON form."""
        return {"rows": list(self.rows)}

    def text(self) -> str:
        """A line for each model, peer and thread count; behind them what was not raced, and how to race it."""
        lines, cells = [], dict[tuple[str, str, int], list[str]]()
        for row in self.rows:
            where = ";".join(f"{name}={size}" for name, size in row["shape"].items()) or "every request"
            for peer, one in row["peers"].items():
                ratio = "~" if row["contended"] else f"{one['ratio']:.2f}x"
                cells.setdefault((row["model"], peer, row["threads"]), []).append(f"{ratio} at {where}")
        for (model, peer, threads), own in cells.items():
            lines.append(f"{model} against {peer}, threads {threads}: {', '.join(own)}")
        if cells:
            lines.append("peer time over ours; > 1 means haotuner is faster")
        if any(row["contended"] for row in self.rows):
            lines.append(f"~ stands for figures that are left out: {OTHER_LOAD}")
        return "\n".join([*lines, *self.hints])


def race_models(request: Request, report: Report, against: Sequence[str] | None, *, quiet: bool) -> ModelSpeed:
    """Race the models of a new pack for a CPU. ``against``: names of ``--peers``; None where none were named.

    A request is raced where its expected time leaves room for ``LEAST_CALLS`` calls in ``QUICK_S`` seconds.
    """
    peers = [peer for peer in (DEFAULT_PEERS if against is None else against) if peer in READ_ONNX]
    others = [peer for peer in against or () if peer not in READ_ONNX]
    rows: list[Mapping[str, Any]] = []
    hints = [f"models are raced here against {' and '.join(READ_ONNX)}, not {', '.join(others)}"] if others else []
    share = QUICK_S / len(request.models) / len(report.threads)
    for model in request.models:
        name, file = model.written.name, model.file
        why = _cannot(model, peers)
        for threads in report.threads if not why else ():
            sizes = few_requests(predicted_us(model, report.tuned, report.device, threads), share / (1 + len(peers)))
            if not sizes:
                why = "one race would take longer than tune waits for it"
                break
            seconds = min(REQUEST_S, share / (1 + len(peers)) / len(sizes))
            if not quiet:
                tell(f"racing {name} against {', '.join(peers)} at {counted(len(sizes), 'request')}, threads {threads}")
            try:
                rows += _raced(request, name, [file], sizes, peers, threads, seconds)
            except HaotunerError as error:
                why = str(error)
                break
        if why:
            hints.append(f"{name} was not raced: {why}; run haotuner bench {report.pack} --model {name} --file {file}")
    return ModelSpeed(rows, hints)


def _cannot(model: ModelTask, peers: Sequence[str]) -> str:
    """Reason that no peer can run a model; empty where some can."""
    if model.file.suffix == PROGRAMS:
        return "it is a file of torch.export, which torch compiles for minutes"
    if not peers:
        return "--peers names no peer that reads ONNX"
    missing = [peer for peer in peers if find_spec(peer) is None]
    return f"{', '.join(missing)} is not installed" if missing else ""


def few_requests(expected: Mapping[str, Mapping[str, float]], seconds: float) -> list[dict[str, int]]:
    """The fastest, a middle and the slowest request that fit into so many seconds of a contender, as expected."""
    fast = sorted(expected, key=lambda text: (expected[text]["all"], text))
    left, chosen = seconds * 1e6, list[str]()
    for text in dict.fromkeys([*fast[:1], *fast[len(fast) // 2 :][:1], *fast[-1:]]):
        left -= LEAST_CALLS * expected[text]["all"]
        if left < 0:
            break
        chosen.append(text)
    return [dict(_size(part) for part in text.split(";") if part) for text in chosen]


def _size(part: str) -> tuple[str, int]:
    name, _, size = part.rpartition("=")
    return name, int(size)


def _raced(
    request: Request,
    name: str,
    files: Sequence[Any],
    sizes: Sequence[Mapping[str, int]],
    peers: Sequence[str],
    threads: int,
    seconds: float,
) -> Sequence[Mapping[str, Any]]:
    with Pack(request.out, threads=threads) as opened:
        model = opened.model(name)
        dims = dims_of(model)  # others are told by the data
        requests = [{dim: size for dim, size in shape.items() if dim in dims} for shape in sizes]
        raced = race(model, files, requests, peers, threads=threads, seconds=seconds, environment=request.environment)
    if raced["missing"]:
        raise HaotunerError(f"{', '.join(raced['missing'])} cannot run it")
    rows: Sequence[Mapping[str, Any]] = raced["rows"]
    return rows
