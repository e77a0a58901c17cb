"""Races packs for ops outside the default workload, and writes docs/results/cpu-dense.md with its plots.

    python -m tests.bench.cpu_dense [--seconds-per-row 3] [--ops NAME,NAME] [--isas avx2,sse] [--out docs/results]

A pack is tuned for each weight state, and raced in that state on one thread and on all cores; then one op a narrower
instruction set, peers limited to it where they can be. Run it on a quiet machine: 4 ops take an hour.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

# BERT-large's layers (Devlin et al. 2019) and one odd size. Single constants of kernels and search were looked at on them
# since: name others with --ops for a race on sizes that nothing was tuned for.
OPS = ("dense_n1024_k1024", "dense_n4096_k1024", "dense_n1024_k4096", "dense_n1000_k600")
ROWS = "m=1,2,3,5,8,13,21,37,64,97,200,446,1024,2048"
PEERS = "torch,onednn,inductor,openvino,onnxruntime,zentorch,numpy"
NARROW_PEERS = "torch,onednn,numpy"  # those that an environment variable limits
NARROW_ROWS = "m=1,3,8,21,97,446"
STATES = ("cold", "hot")


def haotuner(*words: str) -> Any:
    """The JSON document of one verb; its progress goes to our stderr."""
    print("haotuner", *words, file=sys.stderr, flush=True)
    done = subprocess.run([sys.executable, "-m", "haotuner", *words, "--json"], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def main() -> None:
    """Tune, race, write."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--seconds-per-row", default="3")
    words.add_argument("--ops", default=",".join(OPS))
    words.add_argument("--against", default=PEERS)
    words.add_argument("--shapes", default=ROWS)
    words.add_argument("--isas", default="avx2,sse")
    words.add_argument("--out", type=Path, default=Path("docs/results"))
    args = words.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    command = f"python -m tests.bench.cpu_dense --seconds-per-row {args.seconds_per_row} --ops {args.ops} "
    command += f"--shapes {args.shapes} --against {args.against} --isas {args.isas}"
    text = ["# Dense fp32 on the CPU: the race", "", f"Made by `{command}`", ""]
    with tempfile.TemporaryDirectory() as folder:
        for state in STATES:
            tuned, rows = raced(
                Path(folder) / state, args.ops.split(","), state, args.seconds_per_row,
                ["--peers", args.against, "--shapes", args.shapes, "--threads", "1,all",
                 "--plot", str(args.out / f"cpu-dense-{state}.png")],
            )  # fmt: skip
            text += section(f"Weights {state}", tuned, rows, plot=f"cpu-dense-{state}.png")
        for isa in filter(None, args.isas.split(",")):
            narrow, rows = raced(
                Path(folder) / isa, args.ops.split(",")[:1], "cold", args.seconds_per_row,
                ["--peers", NARROW_PEERS, "--shapes", NARROW_ROWS, "--threads", "1", "--isa", isa], f"cpu:{isa}",
            )  # fmt: skip
            text += section(f"Limited to {isa}, weights cold", narrow, rows)
    (args.out / "cpu-dense.md").write_text("\n".join([*text[:4], machine(tuned), "", *text[4:]]) + "\n")


def raced(pack: Path, ops: list[str], state: str, seconds: str, words: list[str], device: str = "cpu") -> tuple[Any, Any]:
    """Tune a pack and race it: the documents of both."""
    words_of_ops = [word for name in ops for word in ("--op", name)]
    tuned = haotuner(
        "tune", *words_of_ops, "--device", device, "--cache-state", state, "--out", str(pack), "--peers", "none", "-q"
    )
    answer = haotuner("bench", str(pack), *words, "--cache-state", state, "--seconds-per-row", seconds, "-q")
    return tuned, answer


def machine(tuned: Any) -> str:
    """One line on where the figures come from."""
    return f"Device `{tuned['device']}`, {platform.system()} {platform.machine()}, Python {platform.python_version()}."


def group_row(group: Any) -> str:
    """Figures of one thread count."""
    low, high = group["interval_vs_best"]
    shares = (f"{group[key]:.2f}" if group[key] else "" for key in ("peak_ratio", "bandwidth_ratio"))
    return (
        f"| {group['threads']} | {group['geomean_vs_best']:.3f} ({low:.3f} to {high:.3f}) | "
        f"{len(group['lost'])} of {group['rows']} | {' | '.join(shares)} |"
    )


def sharing(rows: Any) -> str:
    """What all cores bring over one."""
    us = {(row["op"], row["shape"]["m"], row["threads"]): row["ours_us"] for row in rows if row["ours_us"]}
    most = max(threads for _, _, threads in us)
    gains = [us[op, m, 1] / us[op, m, most] for op, m, threads in us if threads == most and m >= 8 and (op, m, 1) in us]
    if most == 1 or not gains:
        return ""
    return f"{most} threads over one, m >= 8: {math.exp(sum(map(math.log, gains)) / len(gains)):.2f}x."


def section(title: str, tuned: Any, rows: Any, plot: str | None = None) -> list[str]:
    """Markdown of one race."""
    text = [f"## {title}", "", *([f"![time over m]({plot})", ""] if plot else [])]
    text += ["| threads | best peer at each shape over ours | rows lost | of FMA peak, m >= 64 | of bandwidth, m <= 8 |",
             "|---|---|---|---|---|"]  # fmt: skip
    text += [group_row(group) for group in rows["groups"]]
    text += ["", sharing(rows["rows"]), ""]
    text += ["| op | candidates | measured | kernels | regret | packed | tuned in | model |", "|" + "---|" * 8]
    for op in tuned["ops"]:
        regret = "-" if op["regret_mean"] is None else f"{op['regret_mean']:.1%}"
        model = ", ".join(f"{key} {value:.2f}" for key, value in op["model"].items() if value is not None)
        text.append(
            f"| {op['name']} | {op['candidates']} | {op['measured']} | {len(op['kernels'])} | {regret} | "
            f"{op['packed_ratio']:.3f}x | {op['seconds']:.0f} s | {model} |"
        )
    summary = rows["summary"]
    missing = ", ".join(rows["missing"]) or "none"
    text += ["", f"Missing peers: {missing}. Summary over all rows that were not contended:", ""]
    text += ["```", json.dumps(summary, indent=1), "```", ""]
    peers = sorted({peer for row in rows["rows"] for peer in row["peers_us"]})
    text += [f"| op | m | threads | ours us | {' | '.join(peers)} | best/ours | of peak | contended |",
             f"|---|---|---|---|{'---|' * len(peers)}---|---|---|"]  # fmt: skip
    for row in rows["rows"]:
        times = {peer: us for peer, us in row["peers_us"].items() if us}
        ours = row["ours_us"]
        best = f"{min(times.values()) / ours:.2f}" if times and ours else "-"
        share = f"{row['peak_ratio']:.0%}" if row.get("peak_ratio") else "-"
        cells = " | ".join(f"{times[peer]:.0f}" if peer in times else "-" for peer in peers)
        text.append(
            f"| {row['op']} | {row['shape']['m']} | {row['threads']} | {ours:.0f} | {cells} | {best} | {share} | "
            f"{'yes' if row['contended'] else ''} |"
        )
    return [*text, ""]


if __name__ == "__main__":
    main()
