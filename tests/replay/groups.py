"""The groups of goldens, and how each case of them is made."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tests.replay import cases, golden, subject, subject_calls, subject_records
from tests.replay.cases import Ask, Case

Fields = Mapping[str, Any]
Make = Callable[[], Fields]


def groups(*, quick: bool, new: bool = False) -> dict[str, dict[str, Make]]:
    """Group to case to what makes its fields; with ``quick`` only those of every test run.

    ``new``: bits of calls on a host that the golden does not know count, too.
    """
    plans = Plans()
    tuned = cases.QUICK_PLANS + (() if quick else cases.PLANS)
    packs: dict[str, Make] = {case.name: plans.pack(case) for case in tuned}
    return {
        "kernels_cpu": {name: _made(subject.kernel_module, name) for name in cases.cpu_kernels()}
        | {f"points {' '.join(words)}": _made(subject.space, *words)
           for words in (cases.SPACES[:1] if quick else cases.SPACES)},
        "kernels_cuda": {name: _made(subject.kernel_cuda, name, "sm_90a")
                         for name in cases.QUICK_CUDA + (() if quick else cases.CUDA)},
        "plans": {case.name: plans.plan(case) for case in tuned},
        "packs": packs if quick else packs | {name: _made(subject.pack_of, of) for name, of in cases.PACKS.items()},
        "predictions": {ask.name: _predicted(ask)
                        for ask in cases.QUICK_PREDICTIONS + (() if quick else cases.PREDICTIONS)},
        "selections": {" ".join(words): _made(subject.selection, *words)
                       for words in cases.QUICK_SELECTIONS + (() if quick else cases.SELECTIONS)},
        "models": {name: _made(subject.model, name) for name in cases.QUICK_MODELS + (() if quick else cases.MODELS)},
        "cli": {name: _made(subject_records.command, words)
                for name, words in cases.COMMANDS.items() if not quick or "--json" in words},
        "records": {name: _made(subject_records.record, name) for name in cases.RECORDS}
        | {name: _made(subject_records.kernel_code, name) for name in cases.CODES},
        "calls": {} if quick else Calls(new=new).makes(),
        "documents": {} if quick else {name: _made(subject.documents, *of) for name, of in cases.DOCUMENTS.items()},
    }  # fmt: skip


class Plans:
    """Tunes each case once, for its plan and for the text of its pack."""

    def __init__(self) -> None:
        self._found: dict[Case, tuple[Fields, Fields]] = {}

    def plan(self, case: Case) -> Make:
        """What was chosen."""
        return lambda: self._of(case)[0]

    def pack(self, case: Case) -> Make:
        """The text of its pack."""
        return lambda: self._of(case)[1]

    def _of(self, case: Case) -> tuple[Fields, Fields]:
        if case not in self._found:
            self._found[case] = subject.plan(case)
        return self._found[case]


class Calls:
    """Bits of calls: of this host's instruction sets and compilers as they are, of others' as the golden has them."""

    def __init__(self, *, new: bool) -> None:
        self._new = new
        self._bits: dict[str, dict[str, str]] = {}

    def makes(self) -> dict[str, Make]:
        """By op."""
        return {op: partial(self._of, op) for op in cases.CALLS}

    def _of(self, op: str) -> Fields:
        if not self._bits:
            self._bits = subject_calls.call_bits(cases.CALLS, cases.CALL_SHAPES)
            if not self._new:
                self._tell()
        known = golden.read("calls").get(op, {})
        own = {host: bits for host, bits in self._bits[op].items() if self._new or host in known}
        return {**known, **own}

    def _tell(self) -> None:
        """Say which calls are not compared, because nobody has written their digests."""
        was = golden.read("calls")
        for host in dict.fromkeys(host for bits in self._bits.values() for host in bits):
            count = sum(host in bits and host not in was.get(op, {}) for op, bits in self._bits.items())
            if count:
                print(
                    f"calls: {count} of {len(self._bits)} skipped for {host}: no digests; --write adds them", file=sys.stderr
                )


def _made(function: Callable[..., Fields], *words: Any) -> Make:
    return lambda: function(*words)


def _predicted(ask: Ask) -> Make:
    return lambda: subject.prediction(ask)
