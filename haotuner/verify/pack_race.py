"""Short race of a new pack of whole models against the one in its place, before anything is replaced.

Times of two runs are not comparable, nor are those of a run and a prediction. Both packs are loaded by one process, and
answer the requests that the new one was planned for in turns, the least time of each counts. ``python -m
haotuner.verify.pack_race OLD NEW`` says whose turn it is, then the new one's time over the old one's: a process of its own,
for code that crashes must not take the tuner along.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.errors import HaotunerError, PackInvalid
from haotuner.isolate import group
from haotuner.isolate.answers import TimedOut
from haotuner.isolate.group import how_it_ended
from haotuner.pack.manifest import Manifest, read_manifest
from haotuner.runtime.pack import Pack

SLOWER = 1.05  # of the old pack's time: less is chance
SLOWER_THAN_PREDICTED = 1.02  # of the time of a pack of predictions, where both are of one run
SECONDS, LIMIT_S = 6.0, 90.0  # for all requests of all models; of the process
ENOUGH_S = 25.0  # then no further request is begun: large ones come last
LEAST_CALLS = 2
SEED = 0
SAID_MOST = 1500  # letters of what a process said
OLD, NEW, BOTH = "old", "new", "both"
TIMES = "--times"


class KeepPublishedPack(Exception):  # noqa: N818  # nothing is wrong
    """The pack in its place stays, and why."""


class PredictedIsFaster(KeepPublishedPack):
    """The plan of predictions answers faster than the timed one; the message has the ratio of their times."""


def check_not_slower(old: Path, new: Path, environment: Mapping[str, str], slower: float = SLOWER) -> str:
    """Stays where the pack ``old`` serves the same models for the same sizes and is clearly faster, or nobody could judge.

    ``slower``: of the old pack's time, from which on the new one is.

    PackInvalid where the new one fails. Returns what is to be told of an old one that fails: it stands in no pack's way.
    """
    if not comparable(old, new):
        return ""
    outcome = raced_apart(old, new, environment)
    if outcome.ratio is not None:
        if outcome.ratio > slower:
            raise KeepPublishedPack(f"the pack that lies there answers faster than the new one: {outcome.ratio:.2f}x")
        return ""
    if outcome.failed == OLD:
        return f"the pack that lay there does not run any more and is replaced: {outcome.message}"
    if outcome.failed == NEW:
        raise PackInvalid(f"the new pack failed beside the one that lies there and was not published: {outcome.message}")
    raise KeepPublishedPack(
        f"the race with the pack that lies there came to nothing ({outcome.message}), so nobody knows which is faster; "
        "run the same command with --resume, or remove that pack"
    )


def check_predicted_not_faster(predicted: Path, timed: Path, environment: Mapping[str, str]) -> None:
    """PredictedIsFaster where the predicted plan answers faster than the timed one. A plan that fails the race is not."""
    if comparable(predicted, timed):
        ratio = raced_apart(predicted, timed, environment).ratio
        if ratio is not None and ratio > SLOWER_THAN_PREDICTED:
            raise PredictedIsFaster(f"the plan that was predicted answers faster than the one that was timed: {ratio:.2f}x")


def comparable(old: Path, new: Path) -> bool:
    """True if both packs are for the same device and have the same models, by their weights, for the same sizes."""
    try:
        return bool(_meaning(read_manifest(old)) == _meaning(read_manifest(new)))
    except HaotunerError:
        return False


def _meaning(manifest: Manifest) -> Any:
    tuning = manifest.tuning
    threads = {name: sorted(model.get("predicted_us", {})) for name, model in tuning.get("models", {}).items()}
    weights = {name: model.weights_sha256 for name, model in manifest.models.items()}
    return manifest.document["device"]["id"], weights, tuning.get("model_ranges"), threads


@dataclass(frozen=True, slots=True)
class Outcome:
    """``ratio``: time of the new pack over that of the old one; None where ``failed`` (old, new, both) did, as ``said``."""

    ratio: float | None
    failed: str = BOTH
    message: str = ""


def raced_apart(old: Path, new: Path, environment: Mapping[str, str]) -> Outcome:
    """The race in a process of its own, which may crash, hang, or be refused memory."""
    words = [sys.executable, "-X", "faulthandler", "-m", "haotuner.verify.pack_race", str(old), str(new)]
    try:
        answer = group.run(words, LIMIT_S, dict(environment) or None)
    except TimedOut:
        return Outcome(None, BOTH, f"it took more than {LIMIT_S:.0f} s")
    except OSError as error:
        return Outcome(None, BOTH, str(error))
    lines = answer.out.split()
    if answer.code == 0 and lines:
        return Outcome(float(lines[-1]))
    turn = lines[-1] if lines and lines[-1] in (OLD, NEW, BOTH) else BOTH
    return Outcome(None, turn, answer.errors.strip()[-SAID_MOST:] or how_it_ended(answer.code))


def ratio(
    old: Path,
    new: Path,
    now: Callable[[], float] | None = None,
    turn: Callable[[str], None] = lambda _: None,
) -> float:
    """Time of ``new`` over that of ``old``: geometric mean over the requests of all models. HaotunerErrors as of packs.

    ``now`` times calls; None: the processor's time of the calling thread where packs have one, which other programs do not
    lengthen, else wall time. ``turn`` is told which of both is at work, before it is.
    """
    ratios = [log(after / before) for before, after in least_us((old, new), now, turn).values()]
    return exp(sum(ratios) / max(1, len(ratios)))


def least_us(
    packs: Sequence[Path],
    now: Callable[[], float] | None = None,
    turn: Callable[[str], None] = lambda _: None,
) -> dict[tuple[str, str], list[float]]:
    """Least microseconds of each pack's calls, by model and request as ``batch=1;seq=37``; the others as of ``ratio``.

    The packs answer in turns, for ``SECONDS`` in all. The requests are those of the last one.
    """
    models_ = read_manifest(packs[-1]).tuning["models"]
    threads = min(int(count) for plan in models_.values() for count in plan["predicted_us"])
    requests = [
        (us["all"], name, sizes_text)
        for name, plan in models_.items()
        for sizes_text, us in next(iter(plan["predicted_us"].values())).items()
    ]
    clock = now or (time.thread_time if threads == 1 else time.perf_counter)
    words = [OLD, *[NEW] * (len(packs) - 1)]
    result: dict[tuple[str, str], list[float]] = {}
    begin = time.monotonic()
    with ExitStack() as stack:
        loaded = []
        for word, path in zip(words, packs, strict=True):
            turn(word)
            loaded.append(stack.enter_context(Pack(path, threads)))
        for _, name, sizes_text in sorted(requests):
            if result and time.monotonic() - begin > ENOUGH_S:
                break
            dims = {key: int(size) for key, _, size in (part.partition("=") for part in sizes_text.split(";") if part)}
            models: list[Any] = []
            for word, pack in zip(words, loaded, strict=True):
                turn(word)
                models.append(pack.model(name))
            turn(BOTH)  # what is asked is neither's fault
            calls = [call_of(model, dims) for model in models]
            for word, call in zip(words, calls, strict=True):
                turn(word)
                call()
            turn(BOTH)
            result[name, sizes_text] = [1e6 * s for s in _least(calls, SECONDS / len(requests), clock)]
    return result


def form_times(packs: Sequence[Path], environment: Mapping[str, str]) -> list[dict[tuple[str, str], float]] | None:
    """Microseconds of each pack by model and request, in a process of its own; None where one fails."""
    words = [sys.executable, "-X", "faulthandler", "-m", "haotuner.verify.pack_race", TIMES, *map(str, packs)]
    try:
        answer = group.run(words, LIMIT_S, dict(environment) or None)
    except (TimedOut, OSError):
        return None
    if answer.code != 0:
        return None
    rows: list[list[Any]] = json.loads(answer.out.splitlines()[-1])
    return [{(name, sizes): us[at] for name, sizes, us in rows} for at in range(len(packs))]


def call_of(model: Any, dims: Mapping[str, int]) -> Callable[[], Any]:
    """A call of a model at a request, with inputs that are drawn once."""
    draw, inputs, alone = np.random.default_rng(SEED), {}, _alone(model)
    for end in (operand for operand in model.inputs if operand.default is None):
        shape = [dims[extent] if isinstance(extent, str) else extent for extent in end.shape]
        most = 0 if end.name in alone else 1
        drawn = draw.standard_normal(shape) if end.dtype.kind == "f" else draw.integers(0, most + 1, shape)
        inputs[end.name] = drawn.astype(end.dtype)
    more = {"seed": SEED} if hasattr(model, "segments") else {}
    return lambda: model.run(inputs, **more)


def _alone(model: Any) -> set[str]:
    """Inputs that choose from one row, as one type of tokens is: of these 1 is no index."""
    documents = [segment.document for segment in (model.segments.values() if hasattr(model, "segments") else [model])]
    return {
        document["inputs"][position]["name"]
        for document in documents
        for position, _, _, line, _ in document.get("indices", ())
        if document["sizes"][line] == ["number", 1]
    }


def _least(calls: list[Callable[[], Any]], seconds: float, now: Callable[[], float]) -> list[float]:
    """The least time of each, in turns: what else runs here meets both. Each ran once before."""
    least, begin, count = [float("inf")] * len(calls), time.monotonic(), 0
    while count < LEAST_CALLS or time.monotonic() - begin < seconds:
        count += 1
        for index, call in enumerate(calls):
            start = now()
            call()
            least[index] = min(least[index], max(now() - start, 1e-9))
    return least


def main(old: str, new: str, *more: str) -> int:
    """Whose turn it is, a line each, then the ratio; what a pack says that fails goes to stderr.

    After ``--times`` any number of packs: JSON of their times by model and request.
    """
    try:
        if old == TIMES:
            print(json.dumps([[*key, us] for key, us in least_us([Path(pack) for pack in (new, *more)]).items()]))
            return 0
        print(ratio(Path(old), Path(new), turn=lambda who: print(who, flush=True)))
    except HaotunerError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
