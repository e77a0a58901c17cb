"""Sources of a report: packs, record stores, and JSON documents that other verbs printed; read, never changed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from haotuner.errors import HaotunerError, RecordsUnusable, UsageError
from haotuner.host.files import read_regular
from haotuner.pack.facts import NUMBER, check_facts
from haotuner.pack.manifest import Manifest, read_level, read_levels, read_manifest
from haotuner.records.address import open_store, without_password
from haotuner.records.statistics import Queryable, Statistics
from haotuner.runtime.pack import Pack
from haotuner.spec.composition import Composition

URL = "sqlite:///"
DOCUMENT_BYTES = 64 << 20  # of a JSON file: the races of a hundred ops have 2 MB
SHAPE = {str: int}
# What a page reads of each document, by its kind: keys that tell the kind, and the types of all that is read.
_RACE_ROW = {
    "op": str, "shape": SHAPE, "threads": int, "weights": str, "ours_us": (*NUMBER, type(None)),
    "peers_us": {str: (*NUMBER, type(None))}, "regret": (*NUMBER, type(None)), "contended": bool,
}  # fmt: skip
_STEP = {"segment": str, "what": str, "makes": str, "us": NUMBER, "do": str, "at": int}
_MODEL_ROW = {
    "model": str, "shape": SHAPE, "threads": int, "first_us": NUMBER, "steady_us": NUMBER,
    "peers": {str: {"first_us": NUMBER, "steady_us": NUMBER}}, "contended": bool,
}  # fmt: skip
_PREDICTED_ROW = {"shape": SHAPE, "predicted_us": {str: NUMBER}, "measured_us": {str: NUMBER}, "call_us": NUMBER}
_OF_MODEL = {"model": str, "threads": int}
RACE, STEPS, MODEL_RACE, PREDICTIONS = "race", "steps", "model race", "predictions"
_FORMS: Mapping[str, tuple[frozenset[str], dict[str, Any]]] = {
    RACE: (frozenset({"op", "ours_us", "peers_us", "shape", "threads"}), {"rows": [_RACE_ROW]}),
    MODEL_RACE: (frozenset({"model", "steady_us", "peers", "shape", "threads"}), {"rows": [_MODEL_ROW]}),
    PREDICTIONS: (frozenset({"predicted_us", "measured_us", "shape"}), {**_OF_MODEL, "rows": [_PREDICTED_ROW]}),
    STEPS: (frozenset({"what", "makes", "us", "do"}), {"model": str, "shape": SHAPE, "call_us": NUMBER, "steps": [_STEP]}),
}  # fmt: skip
HOW = "name a pack's folder, a record store (sqlite:///FILE or FILE.db), or a .json file of tune, bench or explain --json"


@dataclass(frozen=True, slots=True)
class PackSource:
    """A pack, or one level of it. ``serve``: composition of a dense op's rows; None where this host cannot run the pack."""

    path: Path
    level: str
    manifest: Manifest
    serve: Callable[[str, int, int], Composition] | None
    why_not_served: str = ""

    @property
    def name(self) -> str:
        """Text for people."""
        return f"{self.path}{f' ({self.level})' if self.level else ''}"


@dataclass(frozen=True, slots=True)
class StoreSource:
    """A record store. ``session``: the only one that is looked at; empty for all."""

    url: str
    statistics: Statistics


@dataclass(frozen=True, slots=True)
class Sources:
    """All that a report is made of."""

    packs: Sequence[PackSource] = ()
    stores: Sequence[StoreSource] = ()
    documents: Sequence[tuple[str, str, Mapping[str, Any]]] = ()  # kind, file, document
    notes: Sequence[str] = field(default_factory=tuple)

    def rows(self, kind: str, device: str = "") -> Iterator[Mapping[str, Any]]:
        """Rows of all documents of a kind; ``device``: without documents that name another one."""
        for other, _, document in self.documents:
            if other == kind and (not device or _device_of(document) in ("", device)):
                yield from document["rows"]

    def label_of(self, pack: PackSource) -> str:
        """The words that tell a pack, or its level, from the others here; empty where it is the only one."""
        names = {source.path.name for source in self.packs}
        paths = {source.path for source in self.packs}
        name = "" if len(paths) == 1 else pack.path.name if len(names) == len(paths) else str(pack.path)
        return " ".join(filter(None, (name, pack.level)))

    def files(self, kind: str) -> str:
        """Names of the files of a kind, or an empty text."""
        return ", ".join(file for other, file, _ in self.documents if other == kind)


@contextmanager
def opened(names: Sequence[str], session: str = "", *, serve: bool = True) -> Iterator[Sources]:
    """The sources of these names, open inside. UsageError, PackInvalid or RecordsUnusable for one that is none.

    The store that `haotuner tune` wrote beside a pack is read with the pack, if no store is named. ``serve``: whether a pack
    may be loaded, as `haotuner explain` does, to ask which kernels serve a shape.
    """
    packs: list[PackSource] = []
    documents: list[tuple[str, str, Mapping[str, Any]]] = []
    notes: list[str] = []
    with ExitStack() as stack:
        urls = [name if "://" in name else url_of(Path(name)) for name in names if _is_store(name)]
        for name in names:
            if _is_store(name):
                continue
            path = Path(name)
            if path.is_dir():
                packs += _packs_of(path, stack, serve=serve)
            elif path.suffix == ".json":
                documents += documents_of(path)
            else:
                raise UsageError(f"{name} is {'of no kind that is known' if path.exists() else 'not there'}; {HOW}")
        beside = {} if urls else {records_beside(pack.path): pack for pack in packs}
        stores = [StoreSource(without_password(url), Statistics(_store(url, stack), session)) for url in urls]
        for path, pack in beside.items():
            if path.is_file():
                url = url_of(path)
                try:
                    store = _store(url, stack)
                except RecordsUnusable as error:  # nobody named it: the pack is reported without it
                    notes.append(str(error))
                    continue
                own = str(pack.manifest.tuning.get("session", ""))
                known = own in {known.id for known in store.sessions()}
                stores.append(StoreSource(url, Statistics(store, session or (own if known else ""))))
        for source in stores:
            sessions = {known.id for known in source.statistics.store.sessions()}
            if session and session not in sessions:
                raise UsageError(f"--session {session!r}: {source.url} has {', '.join(sorted(sessions)) or 'no session'}")
        yield Sources(packs, stores, documents, notes)


def records_beside(pack: Path) -> Path:
    """The record store that `haotuner tune` writes beside a pack, unless another one is named."""
    return pack.with_name(f"{pack.name}.records.db")


def url_of(path: Path) -> str:
    """URL of a store in a file."""
    return f"{URL}{quote(os.fsencode(path))}"


def _device_of(document: Mapping[str, Any]) -> str:
    device = document.get("device")
    return str(device.get("id", "")) if isinstance(device, Mapping) else ""


def documents_of(path: Path) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Documents in a JSON file: of `tune --json` its races. UsageError for a file that holds none."""
    try:
        document = json.loads(read_regular(path, DOCUMENT_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{path} cannot be read as JSON ({why}); {HOW}") from error
    return documents_in(document, str(path))


def documents_in(document: Any, name: str) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Documents in JSON of that name, as of ``documents_of``."""
    if isinstance(document, dict) and "pack" in document:  # of tune: races behind it
        document = document.get("speed") or {"rows": []}
        if not document["rows"]:
            return []
    for kind, (keys, form) in _FORMS.items():
        listed = document.get("steps" if kind == STEPS else "rows") if isinstance(document, dict) else None
        if isinstance(listed, list) and listed and all(isinstance(row, dict) and keys <= row.keys() for row in listed):
            try:
                check_facts(document, form, name)
                if kind in (STEPS, PREDICTIONS) and "model" not in document:
                    raise ValueError(f"{name} names no model")
            except ValueError as error:
                raise UsageError(f"{error}; print it anew with --json") from error
            return [(kind, name, document)]
    raise UsageError(f"{name} holds no rows of tune, bench or explain --json; {HOW}")


def _is_store(name: str) -> bool:
    return "://" in name or Path(name).suffix in (".db", ".sqlite")


def _store(url: str, stack: ExitStack) -> Queryable:
    store = open_store(url, write=False)
    stack.callback(store.close)
    if not isinstance(store, Queryable):
        raise UsageError(f"{url} holds nothing that outlives its process; {HOW}")
    return store


def _packs_of(path: Path, stack: ExitStack, *, serve: bool) -> Iterator[PackSource]:
    levels = read_levels(path)
    every = {"": read_manifest(path)} if levels is None else {name: read_level(path, name, levels) for name in levels}
    if not serve:
        yield from (PackSource(path, level, manifest, None, "the pack was not loaded") for level, manifest in every.items())
        return
    try:
        pack = stack.enter_context(Pack(path))
    except HaotunerError as error:  # another instruction set, a GPU's
        yield from (PackSource(path, level, manifest, None, str(error)) for level, manifest in every.items())
        return
    for level, manifest in every.items():
        if manifest.library == pack.manifest.library:
            yield PackSource(path, level, manifest, _compositions(path, pack, stack))
        else:
            yield PackSource(path, level, manifest, None, "the pack was loaded at another level")


def _compositions(path: Path, pack: Pack, stack: ExitStack) -> Callable[[str, int, int], Composition]:
    """Composition of a dense op, by its name, rows and threads."""
    packs = {pack.threads: pack}

    def serve(op: str, m: int, threads: int) -> Composition:
        if threads not in packs:
            packs[threads] = stack.enter_context(Pack(path, threads))
        composition: Composition = packs[threads].op(op).composition(m)
        return composition

    return serve
