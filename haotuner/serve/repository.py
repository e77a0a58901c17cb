"""Models of the packs that a server serves: opening, hand-over to the packs that lie there now, and closing."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from haotuner.errors import EnvironmentMissing, HaotunerError, UsageError
from haotuner.host.memory import available_bytes
from haotuner.host.processor import usable_cores
from haotuner.pack.manifest import Manifest, read_manifest
from haotuner.runtime.model import Chain
from haotuner.runtime.pack import Pack, reservations
from haotuner.serve.batching import Batcher, Observe
from haotuner.serve.independence import EXACT, batch_dimension
from haotuner.serve.refusals import UnknownModel

LOG = logging.getLogger("haotuner.serve")
MEMORY_SHARE = 0.9  # of what is free: the weights' packed copies, beside which the process itself lies
UNBOUNDED_ROWS = 64  # of one call, where a pack does not say for how many it was tuned


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of served models. ``latency_limit_ms``: of batches; ``waiting``: requests of a model that may wait.

    ``batching``: ``exact``, ``close`` or ``off`` (independence.py). ``largest_batch``: rows of one call; 0 for what the pack
    was tuned for. ``max_request_bytes``: working memory and outputs of one call; None for no bound.
    """

    threads: int | None = None
    latency_limit_ms: float = 50.0
    batching: str = EXACT
    largest_batch: int = 0
    waiting: int = 1024
    max_request_bytes: int | None = None


class Repository:
    """Open packs and their models, by name. UsageError for two packs of one model; errors as of ``load``."""

    def __init__(self, paths: Sequence[Path], settings: Settings, observe: Observe | None = None) -> None:
        self._settings, self._observe = settings, observe
        self._lock = threading.Lock()  # of hand-overs, which come one after the other
        self.packs: dict[Path, Pack] = {}
        self.batchers: dict[str, Batcher] = {}
        self._paths: dict[str, Path] = {}
        self.hand_overs = 0
        try:
            for path in paths:
                self._open(path)
        except BaseException:
            self.close(0.0)
            raise

    def _open(self, path: Path) -> None:
        if path in self.packs:
            raise UsageError(f"{path} is given twice; name every pack once")
        pack = self._loaded(path)
        try:
            names = whole_models(pack)
        except BaseException:
            pack.close()
            raise
        if not names:
            pack.close()
            raise UsageError(f"{path} holds no whole model, and a server of requests serves nothing else; tune a model")
        for name in names:
            if name in self._paths:
                pack.close()
                raise UsageError(f"{path} and {self._paths[name]} both hold a model {name}; serve one of both")
            self._paths[name] = path
        self.packs[path] = pack
        for name in names:
            self._serve(pack, name)

    def _loaded(self, path: Path) -> Pack:
        check_memory(path, read_manifest(path))
        pack = Pack(path, threads=self._settings.threads, max_request_bytes=self._settings.max_request_bytes)
        for words in reservations(pack.manifest, on_cpu=True):
            LOG.warning("reservation", extra={"facts": {"pack": str(path), "why": words}})
        return pack

    def _joining(self, pack: Pack, name: str) -> tuple[str, int]:
        """The dimension along which a pack's model may join requests, empty for none, and the rows of one call at most."""
        settings = self._settings
        batch = batch_dimension(pack.model(name), settings.batching)
        ranges: Mapping[str, Sequence[int]] = pack.manifest.tuning.get("model_ranges", {}).get(name, {})
        return batch, settings.largest_batch or (int(ranges[batch][1]) if batch in ranges else UNBOUNDED_ROWS)

    def _serve(self, pack: Pack, name: str) -> None:
        settings, (batch, largest) = self._settings, self._joining(pack, name)
        self.batchers[name] = Batcher(
            pack.model(name),
            batch=batch,
            largest=largest,
            limit_ms=settings.latency_limit_ms,
            waiting=settings.waiting,
            runners=max(1, usable_cores() // pack.threads),
            observe=self._observe,
        )

    def batcher(self, name: str, version: str = "") -> Batcher:
        """Batcher of a model. UnknownModel lists those that there are."""
        batcher = self.batchers.get(name)
        if batcher is None:
            raise UnknownModel(f"no model {name!r} is served; there are {', '.join(self.batchers) or 'none'}")
        if version and version != self.version(name):
            raise UnknownModel(f"model {name} has no version {version!r}; it has {self.version(name)}")
        return batcher

    def version(self, name: str) -> str:
        """Version of a model: always 1, for packs replace one another in their place."""
        return "1" if name in self.batchers else ""

    def pack_of(self, name: str) -> Pack:
        """The open pack that serves a model now."""
        return self.packs[self._paths[name]]

    def models_of(self, path: Path) -> list[str]:
        """Names of the models that a pack's folder serves."""
        return [name for name, own in self._paths.items() if own == path]

    def path_of(self, name: str) -> Path:
        """Folder that a model's pack is read from. UnknownModel."""
        self.batcher(name)
        return self._paths[name]

    def hand_over(self, path: Path, source: Path | None = None) -> str:
        """Serve the models of a pack from the one that lies in its place now, or in ``source``; the new pack's id.

        Requests go on meanwhile. HaotunerErrors where the new pack cannot serve them: the old one goes on.
        """
        with self._lock:
            old = self.packs[path]
            new = self._loaded(source or path)
            try:
                names = whole_models(new)  # weights are packed before anything is switched
                absent = [name for name in self.models_of(path) if name not in names]
                others = [name for name in names if self._paths.get(name, path) != path]
                if absent or others:
                    words = f"lacks the model {absent[0]}" if absent else f"holds {others[0]}, which another pack serves"
                    raise UsageError(f"{source or path} {words}; the old pack serves on")
                joining = {name: self._joining(new, name) for name in names}
                with self._apart([name for name in names if name in self.batchers], joining):
                    old.hand_over(new)
            except BaseException:
                if old.is_open:
                    new.close()
                raise
            self.packs[path] = new
            for name in names:
                if name not in self.batchers:
                    self._paths[name] = path
                    self._serve(new, name)
            self.hand_overs += 1
            return pack_id(new)

    @contextmanager
    def _apart(self, names: Sequence[str], joining: Mapping[str, tuple[str, int]]) -> Iterator[None]:
        """Requests join as the new pack's models allow, once it serves; within, none joins where that is another rule."""
        changed = {name: self.batchers[name].joining for name in names if self.batchers[name].joining != joining[name]}
        for name in changed:
            self.batchers[name].joining = "", 1
        try:
            yield
        except BaseException:
            joining = changed
            raise
        finally:
            for name in changed:
                self.batchers[name].joining = joining[name]

    def hand_over_all(self, failed: Callable[[Path, Exception], None]) -> list[str]:
        """Hand every pack over; ``failed`` is told of those that stay as they are. Ids of the others."""
        ids = []
        for path in list(self.packs):
            try:
                ids.append(self.hand_over(path))
            except (HaotunerError, OSError) as error:
                failed(path, error)
        return ids

    @property
    def busy(self) -> bool:
        """True while a request waits or runs."""
        return any(batcher.busy for batcher in list(self.batchers.values()))

    def warm(self) -> None:
        """Answer one smallest request of each model, so that no client meets the first call. Nobody counts them."""
        for batcher in self.batchers.values():
            model = batcher.model
            inputs = {
                end.name: np.zeros([extent if isinstance(extent, int) else 1 for extent in end.shape], end.dtype)
                for end in model.inputs
            }
            try:
                model.run(inputs)
            except HaotunerError:
                continue

    def close(self, grace_s: float) -> None:
        """Answer what waits, within ``grace_s``, then close the packs."""
        until = time.monotonic() + grace_s
        for batcher in self.batchers.values():
            batcher.close(max(0.0, until - time.monotonic()))
        for pack in self.packs.values():
            pack.close()


def whole_models(pack: Pack) -> list[str]:
    """Names of the models that callers ask for: segments of others are none. All are opened; errors as of ``Pack.model``."""
    models = [pack.model(name) for name in pack.models]
    segments = {name for model in models if isinstance(model, Chain) for name in model.segments}
    return [name for name in pack.models if name not in segments]


def pack_id(pack: Pack) -> str:
    """The pack's identity: 16 digits of the sha256 of its library, which the manifest has."""
    return pack.manifest.sha256[:16]


def check_memory(path: Path, manifest: Manifest) -> None:
    """EnvironmentMissing where the weights of a pack's models, packed once, do not fit into free memory."""
    free, needed = available_bytes(), sum(files.weights_bytes for files in manifest.models.values())
    if free is not None and needed > MEMORY_SHARE * free:
        raise EnvironmentMissing(
            f"{path}: its models' weights take {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free; serve fewer models, "
            "or on a host with more memory"
        )
