"""`haotuner workload`: the ops of a Hugging Face model as a file that `haotuner tune --workload` takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from haotuner.cli.devices import columns
from haotuner.cli.options import Json, Quiet
from haotuner.cli.output import counted, say
from haotuner.errors import UsageError
from haotuner.frontends.hugging_face.config import read_config
from haotuner.frontends.hugging_face.ops import KINDS, Serving, ops_of_config
from haotuner.spec.workload_file import SUFFIX, write_workload
from haotuner.spec.workloads import TYPES


def workload(
    model: Annotated[Path, typer.Argument(metavar="MODEL_DIR", help="A model's folder with its config.json, or that file.")],
    ranks: Annotated[int, typer.Option("--tp", metavar="N", help="Ranks of tensor parallelism: ops are those of one.")] = 1,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The file to write; it ends in .json.")] = Path(
        "workload.json"
    ),
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="X", help=f"Type of the weights: {', '.join(TYPES)} [default: the model's].")
    ] = "",
    kinds: Annotated[
        str, typer.Option("--only", metavar="KINDS", help=f"Kinds of ops, of {','.join(KINDS)}; vLLM serves dense ones.")
    ] = ",".join(KINDS),
    tokens: Annotated[int, typer.Option("--max-tokens", metavar="N", help="Most tokens of one batch.")] = 2048,
    sequences: Annotated[int, typer.Option("--max-sequences", metavar="N", help="Most sequences of one batch.")] = 256,
    device: Annotated[str, typer.Option("--device", help="cpu, or cuda: experts as one grouped product.")] = "cpu",
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the ops of a model (dense, attention, experts) as a workload file, by its config.json alone."""
    if dtype and dtype not in TYPES:
        raise UsageError(f"--dtype {dtype!r}: write one of {', '.join(TYPES)}")
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise UsageError(f"--device {device!r}: write cpu or cuda")
    if out.suffix.lower() != SUFFIX:
        raise UsageError(f"--out {out}: a workload file ends in {SUFFIX}; name it so")
    config = read_config(model)
    serving = Serving(ranks=ranks, tokens=tokens, sequences=sequences, on_device=device.startswith("cuda"))
    ops = ops_of_config(config, serving, dtype, tuple(word.strip() for word in kinds.split(",") if word.strip()))
    if not ops:
        raise UsageError(f"{config.path}: it has no ops of the kinds {kinds}")
    write_workload(out, config.model, ops)
    if json_output:
        rows = [{"op": op.op, "shapes": op.shapes, "layers": op.layers, "count": op.count} for op in ops]
        say(json.dumps({"file": str(out), "model": config.model, "ops": rows}, indent=1))
    elif quiet:
        say(str(out))
    else:
        say(columns([("op", "shapes", "layers", "count"), *((op.op, op.shapes, op.layers, str(op.count)) for op in ops)]))
        more = "" if device.startswith("cpu") else f" --device {device}"
        say(
            f"\n{out}: {counted(len(ops), 'op')} of {config.model}; "
            f"tune them: haotuner tune --workload {out}{more} --out pack"
        )
