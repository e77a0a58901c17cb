"""Models as users bring them, before and after ``haotuner.torch.swap``: what is served, how far off, how fast?

    python -m tests.bench.torch_models [NAME …] [--width 256] [--pack FOLDER] [--rounds 7] [--compiled]

NAME is the start of a name in ``tests.bench.torch_nets``. One pack that measured nothing has the ops of all of them, over
the sizes that their layers see; ``--pack`` keeps it for the next run. A row has the layers served of those with a weight,
activations fused and norms folded, the largest difference from the plain model at three sizes over its largest number, and
the plain model's time over the swapped one's: CPU time of one thread, in turns, the best of all rounds, at the worst size.
``--compiled``: with ``registered=``, and the difference of ``torch.compile``'s results by aot_eager, too. Exit 1 for a row
that is wrong, or that raises where the plain model does not.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import haotuner
import haotuner.torch
from haotuner.torch.required_ops import Needed
from tests.bench.torch_nets import NETS, Net

FAR = 1e-4  # of float32, over the largest number of a result


def main(arguments: Sequence[str] | None = None) -> int:
    """Tune, swap, compare, time; a line each."""
    warnings.simplefilter("ignore")  # of torch and transformers
    args = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    nets = [net for net in NETS if not args.names or any(net.name.startswith(name) for name in args.names)]
    with tempfile.TemporaryDirectory() as folder:
        out = args.pack or Path(folder) / "pack"
        if not out.exists():
            _tune(nets, args.width, out)
        pack = haotuner.load(out, threads=1)
        registered = haotuner.torch.register(pack) if args.compiled else None
        print("| model | served | fused, folded | far | times | compiled | left |\n|---|---|---|---|---|---|---|")
        failed = 0
        for net in nets:
            try:
                row = _row(net, pack, registered, args)
            except Exception as error:  # a row of its own: the other models go on
                row = f"| {net.name} | **{type(error).__name__}: {' '.join(str(error).split())[:200]}** |"
            failed += "**" in row
            print(row, flush=True)
    return int(failed > 0)


def _tune(nets: Sequence[Net], width: int, out: Path) -> None:
    needed = Needed({})
    for net in nets:
        model = _built(net, width)
        for size in net.sizes:
            needed += haotuner.torch.ops_of(model, *net.request(size), fuse=True)
        needed += _alone(haotuner.torch.ops_of(model, *net.request(net.sizes[-1])), needed)
    with tempfile.TemporaryDirectory() as folder:
        trace = needed.write_trace(Path(folder) / "nets.jsonl")
        haotuner.tune(shapes=str(trace), zero_measure=True, threads=1, out=out)


def _alone(plain: Needed, fused: Needed) -> Needed:
    """Ops that serve a layer alone, where only the fused one was counted."""
    calls = {call: times for call, times in plain.calls.items() if call[1] not in fused}
    return Needed({spec: times for spec, times in plain.items() if spec not in fused}, calls)


def _built(net: Net, width: int) -> torch.nn.Module:
    torch.manual_seed(0)
    return net.build(width).eval()


def _row(net: Net, pack: Any, registered: Any, args: argparse.Namespace) -> str:
    plain = _built(net, args.width)
    swapped = copy.deepcopy(plain)
    requests = [net.request(size) for size in net.sizes]
    done = haotuner.torch.swap(swapped, pack, registered=registered)
    with torch.inference_mode():
        far = max(_far(plain(*request), swapped(*request)) for request in requests)
        ratio = min(_ratio(plain, swapped, request, args.rounds) for request in requests)
        compiled = "–"
        if args.compiled and net.compiles:
            torch._dynamo.reset()
            compiled_model = torch.compile(swapped, backend="aot_eager")
            compiled = _said(max(_far(plain(*request), compiled_model(*request)) for request in requests))
    reasons: dict[str, int] = {}
    for reason in done.left.values():
        kind = reason.partition(":")[0]
        reasons[kind] = reasons.get(kind, 0) + 1
    left = ", ".join(f"{count}: {reason}" for reason, count in reasons.items())
    served = f"{len(done.replaced)} of {len(done.replaced) + len(done.left)} | {len(done.fused)}, {len(done.folded)}"
    return f"| {net.name} | {served} | {_said(far)} | {ratio:.2f} | {compiled} | {left} |"


def _said(far: float) -> str:
    return f"{far:.1e}" if far <= FAR else f"**{far:.1e}**"


def _far(expected: Any, answer: Any) -> float:
    """The largest difference of two results over the largest number of each; infinite where they are not alike at all."""
    ours, theirs = (
        [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        for value in (answer, expected)
    )
    if [(leaf.shape, leaf.dtype) for leaf in ours] != [(leaf.shape, leaf.dtype) for leaf in theirs]:
        return float("inf")
    far = 0.0
    for a, b in zip(theirs, ours, strict=True):
        if not a.is_floating_point():
            far = max(far, 0.0 if torch.equal(a, b) else float("inf"))
            continue
        finite = a.isfinite()
        if not torch.equal(finite, b.isfinite()):
            return float("inf")
        if finite.any():
            far = max(far, float((a - b)[finite].abs().max()) / max(float(a[finite].abs().max()), 1e-9))
    return far


def _ratio(plain: Any, swapped: Any, request: Any, rounds: int) -> float:
    """The plain model's time over the swapped one's, the best of so many in turns."""
    best = [float("inf"), float("inf")]
    for _ in range(rounds):
        for index, model in enumerate((plain, swapped)):
            began = time.process_time()
            model(*request)
            best[index] = min(best[index], time.process_time() - began)
    return best[0] / best[1]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="models whose name starts so [default: all]")
    parser.add_argument("--width", type=int, default=256, help="of the stream between layers")
    parser.add_argument("--pack", type=Path, help="the pack, tuned where there is none yet")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--compiled", action="store_true")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
