"""Records, fingerprints and what commands print: with ``subject.py`` and ``subject_calls.py`` all that imports haotuner."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from haotuner.backends.cpu.timing_library import program_hashes, typed_text
from haotuner.backends.cuda.processes import unit_text
from haotuner.backends.fingerprint import Policy, fingerprint, fingerprint_with
from haotuner.records import open_store
from haotuner.records.codec import encode, line, trial_of
from haotuner.records.schema import to_row
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.record import Failed, Record, Timed
from haotuner.spec.shape import Shape
from tests.replay.subject import Fields, _command, _lines, device_of


def command(words: Sequence[str]) -> Fields:
    """What a command prints: of --json a line a value, of --help the text. It must not ask this host anything."""
    with tempfile.TemporaryDirectory() as folder:
        db = f"sqlite:///{folder}/records.db"
        with contextlib.closing(open_store(db)) as store:
            session = store.start("fingerprint", what="dense_n8_k8 m=1..4")
            store.append([replace(record, session=session.id) for record in _records().values()])
        written = _command(*(word.replace("DB", db) for word in words))
    if "--json" not in words:
        return {"text": written.splitlines()}
    return {"json": [line.replace(session.id, "SESSION") for line in _lines(json.loads(written))]}


def record(name: str) -> Fields:
    """Id, key and line of a record, and its row's digest; of the fingerprint what it is made of."""
    example = _records()[name]
    common = fingerprint(device_of("cpu-amd-epyc-f25m17-avx2"), Policy(), {"compiler": "gcc 12"})
    return {
        "id": example.id,
        "key": example.trial.key(),
        "line": line(encode(example)),
        "row": [str(cell) for cell in to_row(example)],
        "fingerprint": [common, fingerprint_with(common, [part.kernel for part in example.trial.composition.parts])],
    }


def _records() -> dict[str, Record]:
    """A record of each form."""
    one_row, four_rows = "cpu_dense_fp32__mr1_nr8_pw8_ku1_vl8_pf0", "cpu_dense_fp32__mr4_nr8_pw8_ku1_vl8_pf0"
    timed = Timed(samples_us=(1.5, 1.25, 1.75), max_error=0.125)

    def of(kernel: str, m: int, outcome: Timed | Failed = timed, **more: Any) -> Record:
        trial = trial_of(op="dense_n8_k8", kernel=kernel, shape=Shape.of(m=m), **more)
        return Record(trial=trial, outcome=outcome, device_id="cpu-amd-epyc-f25m17-avx2", fingerprint="fingerprint",
                      session="session", when=1_700_000_000.25 + m, seed=m, facts={"drift": 1.0, "why": "none"})  # fmt: skip

    return {
        "timed": of(one_row, 1),
        "failed": of(four_rows, 4, Failed(stage="build", reason="compile_error", detail="of the compiler")),
        "repeated": of(one_row, 1, repeat=2),
        "several kernels": of(f"{four_rows}*2+{one_row}*1", 9),
        "two threads, hot": of(four_rows, 8, threads=2, weights="hot", split="m"),
    }


def kernel_code(name: str) -> Fields:
    """What of a kernel's programs goes into fingerprints: names and comments in them do not."""
    if name.startswith("cuda_"):
        return {"code": unit_text(name).splitlines()}
    kernel = MicroKernel.parse(name)
    return {"code": [json.dumps(program_hashes(kernel)), *map(str, cast(Sequence[object], typed_text(kernel, "x86-64-v3")))]}
