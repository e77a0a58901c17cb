"""facts.json: the facts of the ops of a pack of whole models. No call needs them, so that opening such a pack reads none.

The manifest has the file's hash. It is compared when the first fact is asked for, and by ``verify``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from haotuner.errors import PackInvalid
from haotuner.pack.facts import OP, check_facts, check_texts
from haotuner.pack.folder import SIZE_LIMIT_BYTES, Folder, steadily
from haotuner.pack.names import FACTS
from haotuner.pack.parsing import parse

_SHA = re.compile(r"[0-9a-f]{64}")


class FactsFile:
    """The file of one pack. ValueError for a hash that is none."""

    def __init__(self, pack: Path, sha256: Any) -> None:
        if not isinstance(sha256, str) or not _SHA.fullmatch(sha256):
            raise ValueError(f"facts_sha256 is {sha256!r:.80}, not a sha256")
        self._pack, self._sha256 = pack, sha256

    def of(self, op: str) -> Mapping[str, Any]:
        """Facts of an op, none where the file has none. PackInvalid where it is missing, damaged or not sound."""
        result: Mapping[str, Any] = self._ops.get(op, {})
        return result

    @cached_property
    def _ops(self) -> Mapping[str, Any]:
        return steadily(self._pack, self._read)

    def _read(self, folder: Folder) -> Mapping[str, Any]:
        path = folder.path / FACTS
        try:
            raw = folder.read(FACTS, SIZE_LIMIT_BYTES)
        except (OSError, ValueError) as error:
            words = getattr(error, "strerror", None) or error
            raise PackInvalid(f"{path} cannot be read ({words}); restore the pack or tune again") from error
        if hashlib.sha256(raw).hexdigest() != self._sha256:
            raise PackInvalid(f"{path}: its sha256 is not the one in the manifest; load the pack again, or restore it")
        document = parse(path, raw)
        try:
            check_texts(document, raw)
            check_facts(document, {str: OP}, "the file of facts")
        except ValueError as error:
            raise PackInvalid(f"{path}: {error}; tune again or restore the pack from where it came") from error
        result: Mapping[str, Any] = document
        return result


class OpFacts(Mapping[str, Any]):
    """Facts of one op, read when the first is asked for. PackInvalid as of the file."""

    __slots__ = ("_file", "_op")

    def __init__(self, file: FactsFile, op: str) -> None:
        self._file, self._op = file, op

    def __getitem__(self, key: str) -> Any:
        return self._file.of(self._op)[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.of(self._op))

    def __len__(self) -> int:
        return len(self._file.of(self._op))
