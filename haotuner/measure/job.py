"""A job and the way it fails: the words that parent and child of a measurement share."""

from __future__ import annotations

from typing import Any

Job = dict[str, Any]


class Refusal(Exception):
    """The job failed at a known stage for a known reason (words of record.Failed)."""

    def __init__(self, stage: str, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.stage, self.reason = stage, reason
