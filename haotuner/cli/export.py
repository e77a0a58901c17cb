"""`haotuner export`: choices and timings as vLLM, CLBlast and Kernel Tuner read them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from haotuner.cli.export_source import is_store, read_source
from haotuner.cli.options import Json, Quiet, Verbose
from haotuner.cli.output import say, tell
from haotuner.errors import EnvironmentMissing, UsageError
from haotuner.host.files import kind_of, written_aside
from haotuner.records.export_foreign import ForeignFile, cache_files, results_files, tuner_files
from haotuner.records.export_vllm import TOKENS, tables_of
from haotuner.spec.op import Op

export_app = typer.Typer(help="Write choices and timings as vLLM, CLBlast and Kernel Tuner read them.", no_args_is_help=True)

_Source = Annotated[str, typer.Argument(metavar="PACK|DB", help="A pack folder, or a record store: sqlite:///FILE.")]
_Out = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the files go; it is made if it is not there.")]
_OpName = Annotated[str | None, typer.Option("--op", metavar="NAME", help="Only this op, by the name of its records.")]
_DeviceId = Annotated[str | None, typer.Option("--device", help="Of a store with records of several devices, this one.")]
_Force = Annotated[bool, typer.Option("--force", help="Replace files of the same names.")]


class Layer(StrEnum):
    """Product of an expert: gate and up together, or down."""

    UP = "up"
    DOWN = "down"


@export_app.command()
def vllm(
    source: _Source,
    out: _Out,
    experts_a_token: Annotated[
        int | None,
        typer.Option("--top-k", min=1, help="Of experts: how many each token has; an op's rows are tokens times these."),
    ] = None,
    layer: Annotated[
        Layer,
        typer.Option("--layer", help="Of experts: the op's product, up (with gate, n is 2N) or down (k is N)."),
    ] = Layer.UP,
    device_name: Annotated[
        str | None, typer.Option("--device-name", help="The device as its driver says it, if that is another name.")
    ] = None,
    op: _OpName = None,
    device: _DeviceId = None,
    force: _Force = False,
    json_output: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Write tile tables of vLLM: experts in fp16 or bf16 (grouped), products of signed bytes (dense).

    vLLM reads those of experts from the folder that VLLM_TUNED_CONFIG_FOLDER names.
    """

    def rows(problem: Op, _first: int, _last: int) -> list[int]:
        return [tokens * (experts_a_token or 1 if problem.kind == "grouped" else 1) for tokens in TOKENS]

    opened = read_source(source, op=op, device=device, extents=rows)
    grouped = any(isinstance(choice.problem, Op) and choice.problem.kind == "grouped" for choice in opened.choices)
    if grouped and experts_a_token is None:
        raise UsageError("experts: an op's rows are tokens times experts of a token; say how many with --top-k, such as 2")
    name = device_name or opened.device.name or opened.device.id
    tables = tables_of(
        opened.choices,
        opened.device,
        name,
        experts_a_token=experts_a_token or 1,
        layer="down" if layer is Layer.DOWN else "up",
    )
    files = [ForeignFile(name=table.file_name, text=table.text(), rows=len(table.best_by_m)) for table in tables.tables]
    what = "vLLM's tables hold experts (grouped:…,dtype=bf16) and products of signed bytes (dense:…,dtype=int8,in=int8)"
    if tables.changed and not quiet:
        tell(f"{tables.changed} tiles have extents or warps that Triton cannot have: written with the next power of two")
    _finish(files, opened.left_out + tables.left_out, what, source, out, force, json_output, quiet, verbose)


@export_app.command()
def clblast(
    source: _Source,
    out: _Out,
    op: _OpName = None,
    device: _DeviceId = None,
    force: _Force = False,
    json_output: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Write files of CLBlast's tuner: a store's timings of CLBlast's own Xgemm, which its scripts/database reads."""
    what = "CLBlast's tuner writes times of CLBlast's own Xgemm (records of clblast_xgemm); kernels of a pack are others"
    if not is_store(source):
        raise UsageError(f"{source}: {what}; name a store, such as sqlite:///records.db")
    opened = read_source(source, op=op, device=device, extents=_powers)
    files = tuner_files(opened.records, opened.device)
    others = len({record.trial.op.name for record in opened.records}) - len(files)
    left_out = Counter({"ops without times of CLBlast's Xgemm": others} if others > 0 else {})
    _finish(files, left_out, what, source, out, force, json_output, quiet, verbose)


@export_app.command("kernel-tuner")
def kernel_tuner(
    source: _Source,
    out: _Out,
    op: _OpName = None,
    device: _DeviceId = None,
    force: _Force = False,
    json_output: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Write files of Kernel Tuner: of a store a cache for each family and shape, of a pack the best of each size.

    A cache holds every configuration with its times; the best of each size is what kernel_tuner.integration reads.
    """
    opened = read_source(source, op=op, device=device, extents=_powers)
    if is_store(source):
        files = cache_files(opened.records, opened.device)
    else:
        files = results_files(opened.choices, opened.device)
        untimed = sum(choice.us is None for choice in opened.choices)
        opened.left_out += Counter({"shapes without a time": untimed} if untimed else {})
    what = "files of Kernel Tuner hold one kernel for a shape, with its time"
    _finish(files, opened.left_out, what, source, out, force, json_output, quiet, verbose)


def _powers(_problem: Op, first: int, last: int) -> list[int]:
    """Powers of two of a range, and its ends."""
    return sorted({first, last, *(1 << power for power in range(last.bit_length()) if first <= 1 << power <= last)})


def _finish(
    files: list[ForeignFile],
    left_out: Mapping[str, int],
    what: str,
    source: str,
    out: Path,
    force: bool,
    json_output: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Write all files or none, and say what was written and what no file holds."""
    if not files:
        reasons = "; ".join(f"{reason} ({count})" for reason, count in Counter(left_out).most_common(3))
        raise UsageError(f"{source}: nothing to write: {reasons or 'nothing was timed'}; {what}")
    _check(files, out, force)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for file in files:
            with written_aside(out / file.name) as aside:
                aside.write_text(file.text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentMissing(f"cannot write {out}: {error.strerror}; name a writable folder with free space") from error
    if json_output:
        written = [{"path": str(out / file.name), "rows": file.rows} for file in files]
        say(json.dumps({"files": written, "left_out": dict(left_out)}, indent=1))
        return
    for file in files:
        say(f"{out / file.name}: {file.rows} configurations" + (f", {len(file.text)} bytes" if verbose else ""))
    for reason, count in () if quiet else sorted(left_out.items()):
        tell(f"left out {count}: {reason}")


def _check(files: list[ForeignFile], out: Path, force: bool) -> None:
    """UsageError where something is in the way, before anything is written."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is {kind_of(out) or 'a file'}; name a folder")
    for file in files:
        path = out / file.name
        if result := kind_of(path, follow=False):
            raise UsageError(f"{path} is {result}; name another folder with --out")
        if path.exists() and not force:
            raise UsageError(f"{path} exists; add --force to replace it, or name another folder with --out")
