"""A store that waits for its server: calls are repeated while it is away, and what a call did twice counts once."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from haotuner.errors import RecordsUnreachable, RecordsUnusable
from haotuner.records import MemoryStore, patient
from haotuner.records.patient import PatientStore
from haotuner.spec.record import Record
from tests.contract.record_examples import record


class Away(MemoryStore):
    """A server that is away for some calls; it may have done what it was asked before it went."""

    def __init__(self, calls: int, error: type[RecordsUnusable] = RecordsUnreachable) -> None:
        super().__init__()
        self.calls, self.error = calls, error

    def append(self, records: Iterable[Record]) -> int:
        count = super().append(records)
        if self.calls:
            self.calls -= 1
            raise self.error("away")
        return count


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patient, "PAUSE_S", 0.001)


def test_a_call_is_repeated_and_stores_once() -> None:
    server = Away(3)
    store = PatientStore(server)
    session = store.start("f")
    example = record(session=session.id)
    assert store.append([example]) == 0 and server.calls == 0
    assert list(store.records()) == [example] and store.measured(example.fingerprint) == {example.trial.key(): example}


def test_patience_ends() -> None:
    with pytest.raises(RecordsUnreachable, match="away"):
        PatientStore(Away(10**6), patience_s=0.02).append([])


def test_another_fault_is_not_waited_out() -> None:
    server = Away(5, RecordsUnusable)
    with pytest.raises(RecordsUnusable):
        PatientStore(server).append([])
    assert server.calls == 4
