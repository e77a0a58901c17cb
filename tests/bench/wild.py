"""Models that nobody tuned haotuner for, beside ONNX Runtime: are they served, rightly, fast, and small?

    python -m tests.bench.wild --cache FOLDER [--only NAME …] [--page docs/results/wild.md]
    python -m tests.bench.wild FILE_OR_FOLDER … --shapes "x=1..8x3x224x224"

The first form has models of wheels (`tests.bench.wild_models`), which pip downloads into a folder that keeps them. Each is
tuned with ``--zero-measure`` (or for ``--budget``), then answers sizes drawn of its range: held against ONNX Runtime's
answers, and raced in turns, one thread, each contender alone in its process. A model that is refused, crashes or is wrong
is a row of the table, too.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from haotuner.bench.models import ShapeConstraints, parse_inputs, race, shape_constraints_of
from haotuner.errors import HaotunerError
from haotuner.partition.dim_ranges import spans_of
from haotuner.runtime.pack import load
from haotuner.spec.shape import Span
from haotuner.verify.model_check import graph_of, name_of
from tests.bench.wild_models import EVERY, Wild, fetched

SIZES, PEERS = 7, ("onnxruntime",)
NEAR, MOVED, ROUNDING = 1e-3, 1e-6, 2.0**-23
NOTHING = "–"  # of a peer that cannot run a model
ROUNDS = 15  # of both in turns by CPU time
Judged = tuple[list[float], list[float], list[float]]
TUNE_LIMIT_S, JUDGE_LIMIT_S = 1800.0, 600.0
HEAD = """# Models that nobody tuned haotuner for

Made by `python -m tests.bench.wild --cache FOLDER --page docs/results/wild.md`. Each model is the file of a wheel on PyPI,
or what torch's exporter writes of an architecture; its ranges are what a user of it would ask for. *right*: the largest
difference from ONNX Runtime's answers over their largest magnitude, over all sizes; wrong, in bold, is what exceeds 1e-3
and three times what a rounding of the input or of the weights, or one thread, moves ONNX Runtime's own. *steady*: ONNX
Runtime's time over ours (geometric mean; the worst size), one thread, in turns; *new*: the same of first answers. *pack*:
megabytes, of which weights. *load*, *peak*: time to load and most memory, ours / ONNX Runtime's. With `--against
onnxruntime,openvino` each cell has the same of OpenVINO behind it, in fp32.
*kept*: the pack of an earlier run.

| model | wheel | nodes | sizes | right | steady | worst | new | load, ms | pack, MB | peak, MB | tuned in, s |
|---|---|---|---|---|---|---|---|---|---|---|---|
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Tune, judge, race; a line each. Exit 1 if a model is refused, fails or is wrong."""
    args = _parser().parse_args(arguments)
    failed = 0
    for file, model in _models(args):
        row = _row(file, model, args)
        failed += "**" in row
        print(row, flush=True)
        if args.page:
            _put(args.page, row)
    return int(failed > 0)


def drawn(spans: Mapping[str, Span], count: int) -> list[dict[str, int]]:
    """Different requests of the ranges: both ends, and odd ones between, each dimension drawn log-uniformly."""
    draw = random.Random(0)
    requests: dict[tuple[tuple[str, int], ...], dict[str, int]] = {}
    ends = [{name: span_.first for name, span_ in spans.items()}, {name: span_.last for name, span_ in spans.items()}]
    for at in range(8 * count):
        span_ = ends[at] if at < 2 else {name: draw.choice(span.sample(400)) for name, span in spans.items()}
        requests.setdefault(tuple(span_.items()), span_)
    return list(requests.values())[:count]


def taken(spans: Mapping[str, Span], count: int, agreed: ShapeConstraints) -> list[dict[str, int]]:
    """Of ``drawn`` what a model takes: dimensions that it joins are alike, and no request is one that it refuses."""
    own = drawn({name: span for name, span in spans.items() if name not in agreed.alike}, 8 * count)
    whole = ({name: request[agreed.alike.get(name, name)] for name in spans} for request in own)
    return [request for request in whole if not agreed.refused(request)][:count]


def judged(
    pack: str, name: str, file: str, requests: Sequence[Mapping[str, int]], input_text: str, rounds: int = 0
) -> Judged:
    """How far our answers are from ONNX Runtime's at each request, as a share of the largest number of an output.

    Then the same of ONNX Runtime's own answers to an input, and by weights, that moved by a rounding, and by one thread:
    models that round to bytes as they go tell no nearer ones right from wrong. Last, with ``rounds``, ONNX Runtime's CPU
    time over ours, one thread each, in turns.
    """
    import onnxruntime

    from haotuner.bench.model_child import feeds_of
    from haotuner.graph.error_bounds import difference

    alone = onnxruntime.SessionOptions()
    alone.intra_op_num_threads = 1
    peer, *others = (
        onnxruntime.InferenceSession(item, options, providers=["CPUExecutionProvider"])
        for item, options in ((file, None), (_moved_weights(file), None), (file, alone))
    )
    far: list[float] = []
    free: list[float] = []
    ratios: list[float] = []
    with load(pack, threads=1) as opened:
        model = opened.model(name)
        inputs = [{"name": end.name, "dtype": end.dtype.name, "shape": list(end.shape)} for end in model.inputs]
        names = [end.name for end in peer.get_outputs()]
        for seed, sizes in enumerate(requests):
            feeds = feeds_of(inputs, sizes, seed, parse_inputs(input_text, [end.name for end in model.inputs], list(sizes)))
            runs = ((peer, feeds), (peer, _moved(feeds)), *((other, feeds) for other in others))
            theirs, *moved = (dict(zip(names, session.run(names, item), strict=True)) for session, item in runs)
            ours = model.run(feeds)
            far.append(max(difference(ours[item], theirs[item]) for item in names))
            free.append(max(difference(of[item], theirs[item]) for of in moved for item in names))
            if rounds:
                ratios.append(_cpu_ratio(partial(model.run, feeds), partial(others[-1].run, names, feeds), rounds))
    return far, free, ratios


def _cpu_ratio(ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int) -> float:
    """Their CPU time over ours, in turns: other programs on the host lengthen neither. The least of all turns counts.

    A turn of either takes a millisecond at least, since the clock has steps.
    """
    least = []
    calls = []
    for run in (ours, theirs):
        run()
        begin = time.thread_time()
        run()
        calls.append(max(1, round(1e-3 / max(1e-6, time.thread_time() - begin))))
        least.append(math.inf)
    for _ in range(rounds):
        for index, run in enumerate((ours, theirs)):
            begin = time.thread_time()
            for _ in range(calls[index]):
                run()
            least[index] = min(least[index], (time.thread_time() - begin) / calls[index])
    return least[1] / least[0]


def _moved(feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The same request with its floats changed by what rounding changes."""
    import numpy as np

    # Of no axes numpy makes a scalar, which ONNX Runtime takes for none of its own.
    return {
        name: np.asarray(value * value.dtype.type(1 + MOVED)) if value.dtype.kind == "f" else value
        for name, value in feeds.items()
    }


def _moved_weights(file: str) -> bytes:
    """The model with each fp32 weight moved by a rounding, up or down: of whole numbers nothing else is.

    Scales of images and single numbers stay: a rounding below 1 leaves an image of a batch out, or a step of a range.
    """
    import numpy as np
    import onnx

    model, draw = onnx.load(file), np.random.default_rng(0)
    resized = [node for node in model.graph.node if node.op_type in ("Resize", "Upsample")]
    scales = {name for node in resized for name in node.input[1:]}
    for weight in model.graph.initializer:
        if weight.data_type == onnx.TensorProto.FLOAT and weight.name not in scales and math.prod(weight.dims) > 1:
            array = onnx.numpy_helper.to_array(weight)
            moved = (array * (1 + draw.choice([-ROUNDING, ROUNDING], array.shape))).astype(np.float32)
            weight.CopyFrom(onnx.numpy_helper.from_array(moved, weight.name))
    return bytes(model.SerializeToString())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="ONNX files, or folders of them, all of the same --shapes")
    parser.add_argument("--shapes", default="")
    parser.add_argument("--given", default="", help="inputs whose elements matter: sr=16000;lengths=seq")
    parser.add_argument("--cache", type=Path, help="keeps the ONNX files of wheels")
    parser.add_argument("--only", nargs="*", default=[], help=f"of {', '.join(model.name for model in EVERY)}")
    parser.add_argument("--packs", type=Path, default=Path("packs-wild"), help="keeps packs; one that is there is taken")
    parser.add_argument("--budget", default="", help="tune for so long instead of --zero-measure")
    parser.add_argument("--sizes", type=int, default=SIZES)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each contender at each size")
    parser.add_argument("--against", default=",".join(PEERS), help="onnxruntime,openvino")
    parser.add_argument("--cpu-time", action="store_true", help="of both in one process, where the host has other work")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--judge", type=json.loads, help=argparse.SUPPRESS)
    return parser


def _models(args: argparse.Namespace) -> Iterator[tuple[Path, Wild]]:
    for path_ in args.files:
        for file in sorted(path_.rglob("*.onnx")) if path_.is_dir() else [path_]:
            yield file, Wild(name_of(file), "", file.name, args.shapes, args.given)
    unknown = set(args.only) - {wild.name for wild in EVERY}
    if unknown or not (args.files or args.cache):
        sys.exit(f"no model {', '.join(unknown)}" if unknown else "give files with --shapes, or --cache FOLDER")
    if args.cache:
        for model in EVERY:
            if not args.only or model.name in args.only:
                try:
                    file = fetched(model, args.cache)
                except ModuleNotFoundError as error:  # of what exports need alone
                    print(f"{model.name} is left out: {error}; pip install torch transformers onnxscript", file=sys.stderr)
                    continue
                yield file, model


def _row(file: Path, model: Wild, args: argparse.Namespace) -> str:
    """The line of a model. Whatever goes wrong is said in it, in bold."""
    args.packs.mkdir(parents=True, exist_ok=True)
    pack = args.packs / model.name
    about = f"| {model.name} | {model.wheel.replace('==', ' ')} | {_nodes(file)} | {model.shapes} "
    begin = time.perf_counter()
    try:
        if not pack.exists():
            _tune(file, model, pack, args.budget)
        took = f"{time.perf_counter() - begin:.0f}" if time.perf_counter() - begin > 1 else "kept"
        return f"{about}| {_raced(file, model, pack, args)} | {took} |"
    except (HaotunerError, RuntimeError, subprocess.TimeoutExpired) as error:
        words = " ".join(str(error).split()).replace("|", "/")[-300:]
        return f"{about}| **{words}** | | | | | | | {time.perf_counter() - begin:.0f} |"


def _nodes(file: Path) -> int:
    import onnx

    return len(onnx.load(str(file), load_external_data=False).graph.node)


def _tune(file: Path, model: Wild, pack: Path, budget: str) -> None:
    how = ["--budget", budget] if budget else ["--zero-measure"]
    command = ["tune", str(file), "--shapes", model.shapes, "--threads", "1", *how, "--out", str(pack), "-q"]
    _run(["haotuner", *command], TUNE_LIMIT_S, good=(0, 3))


def _raced(file: Path, model: Wild, pack: Path, args: argparse.Namespace) -> str:
    spans, name = spans_of(graph_of(file, model.shapes), model.shapes), name_of(file)
    input_text, peers = model.given, args.against.split(",")
    with load(pack, threads=1) as opened:
        served = opened.model(name)
        dims = [item for item in spans if any(item in end.shape for end in served.inputs)]
        requests = taken({item: spans[item] for item in dims}, args.sizes, shape_constraints_of(served, dims))
        judge = json.dumps([str(pack), name, str(file), requests, input_text, ROUNDS * args.cpu_time])
        far, free, by_cpu = json.loads(_run(["tests.bench.wild", "--judge", judge], JUDGE_LIMIT_S).splitlines()[-1])
        wrong = any(item > max(NEAR, 3 * own) for item, own in zip(far, free, strict=True))
        away = f"**{max(far):.0e}**" if wrong else f"{max(far):.0e}"
        if args.cpu_time:
            for request, ratio, distance in zip(requests, by_cpu, far, strict=True):
                print(
                    f"  {'x'.join(map(str, request.values()))}: {ratio:.2f} by CPU time, {distance:.1e} away",
                    file=sys.stderr,
                )
            mean = math.exp(statistics.fmean(map(math.log, by_cpu)))
            return f"{away} | {mean:.2f} | {min(by_cpu):.2f} | – | – | {_megabytes(pack)} | –"
        document = race(
            served, [file], requests, peers, threads=1, seconds=args.seconds, environment=dict(os.environ),
            input_values=parse_inputs(input_text, [end.name for end in served.inputs], list(dims)),
        )  # fmt: skip
    _tell(document, far)
    summary = document["summary"]
    ratios = [[row["peers"][peer]["ratio"] for row in document["rows"] if peer in row["peers"]] for peer in peers]
    cells = [
        away,
        " / ".join(f"{math.exp(statistics.fmean(map(math.log, item))):.2f}" if item else NOTHING for item in ratios),
        " / ".join(f"{min(item):.2f}" if item else NOTHING for item in ratios),
        " / ".join(f"{summary['stream_vs'][peer]:.2f}" if peer in summary["stream_vs"] else NOTHING for peer in peers),
        " / ".join(f"{value:.0f}" for value in summary["load_ms"].values()),
        _megabytes(pack),
        " / ".join(f"{value / 1e6:.0f}" for value in summary["peak_bytes"].values()),
    ]
    return " | ".join(cells)


def _tell(document: Mapping[str, Any], far: Sequence[float]) -> None:
    """Each size, on stderr."""
    for row, away in zip(document["rows"], far, strict=True):
        sizes = "x".join(map(str, row["shape"].values()))
        beside = ", ".join(f"{p} {peer['steady_us'] / 1e3:.2f} ({peer['ratio']:.2f})" for p, peer in row["peers"].items())
        times = f"new {row['first_us'] / 1e3:.2f} steady {row['steady_us'] / 1e3:.2f} ms, {beside}"
        print(f"  {sizes}: {times}, {away:.1e} away", file=sys.stderr, flush=True)


def _megabytes(pack: Path) -> str:
    whole = sum(path.stat().st_size for path in pack.rglob("*") if path.is_file())
    weights = sum(path.stat().st_size for path in pack.glob("models/*.weights"))
    return f"{whole / 1e6:.1f} of {weights / 1e6:.1f}"


def _run(command: Sequence[str], limit_s: float, good: Sequence[int] = (0,)) -> str:
    """What a module of Python says. RuntimeError with its last words where it fails."""
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, timeout=limit_s, check=False)
    if done.returncode not in good:
        raise RuntimeError(f"{command[0]} exits with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _put(page: Path, row: str) -> None:
    """The row in the page's first table, in place of an earlier one of the same model; what stands below stays."""
    text = (
        page.read_text(encoding="utf-8")
        if page.exists()
        else f"{HEAD}\n{platform.machine()}, {datetime.now(UTC):%Y-%m-%d}\n"
    )
    rows, below = text[text.index("|---") :].split("\n\n", 1) if page.exists() else ("", text.removeprefix(HEAD))
    name = row.split("|")[1]
    others = [line for line in rows.splitlines()[1:] if line.split("|")[1] != name]
    page.write_text(HEAD + "\n".join([*others, row]) + "\n\n" + below.lstrip("\n"), encoding="utf-8")


if __name__ == "__main__":
    parsed = _parser().parse_args()
    if parsed.judge:
        print(json.dumps(judged(*parsed.judge)))
        sys.exit(0)
    sys.exit(main())
