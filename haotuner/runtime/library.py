"""A pack's library: checked in full, then loaded. None of its code runs before every check has passed."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.errors import PackInvalid, PackMismatch
from haotuner.host.processor import missing_flags, platform_problem
from haotuner.pack.folder import Folder, steadily
from haotuner.pack.library_file import check_library_in
from haotuner.pack.manifest import Manifest, manifest_in
from haotuner.pack.op import PackOp
from haotuner.runtime.arrays import takes_addresses
from haotuner.runtime.device_memory import Gpu
from haotuner.runtime.native_library import NativeLibrary
from haotuner.spec.limits import table_name


def checked_manifest(pack: Path, gpu: Gpu | None = None) -> Manifest:
    """Manifest of a pack whose every file is sound and fits this host, and its device if given; raises as ``_checked``."""
    return steadily(pack, lambda folder: _checked(folder, gpu)[0])


def _checked(folder: Folder, gpu: Gpu | None) -> tuple[Manifest, os.stat_result]:
    """Manifest of a pack whose every file is sound and fits this host, and facts of its library's file.

    Raises:
        PackInvalid: a file is missing, changed, a link, or not what the manifest says.
        PackMismatch: the pack is sound, but this host cannot run it.
    """
    pack, manifest = folder.path, manifest_in(folder, None if gpu is None else gpu.choose)
    facts = check_library_in(folder, manifest)
    problem = platform_problem()
    if problem:
        raise PackMismatch(f"{pack}: {problem}")
    if gpu is not None:
        gpu.check(manifest)
        return manifest, facts
    if manifest.on_device:
        raise PackMismatch(
            f"{pack} holds code for {manifest.arch} devices and none for CPUs; name the device, as in "
            'haotuner.load(pack, device="cuda:0")'
        )
    missing = missing_flags(manifest.arch)
    if missing is None:
        raise PackMismatch(
            f"{pack} was built for {manifest.arch}, which is no x86-64 level; it cannot be served on this CPU"
        )
    if missing:
        raise PackMismatch(
            f"{pack} was built for {manifest.arch}; this CPU lacks {', '.join(missing)}. "
            "Tune on this host, or with --device cpu:avx2 or cpu:sse on the other"
        )
    return manifest, facts


class Library:
    """Functions of a loaded library. Keeps it mapped as long as it lives."""

    def __init__(self, pack: Path, gpu: Gpu | None = None) -> None:
        self._pack = pack
        self.manifest, self._place, self._loaded = steadily(pack, lambda folder: _checked_and_loaded(folder, gpu))
        if isinstance(self._loaded, NativeLibrary):  # the ops' door may never be needed
            return
        if self.manifest.document["schema"] > 1:  # older libraries do not say
            self._agree(pack)
        if gpu is not None:
            self._open(pack, gpu)

    @property
    def mapped(self) -> NativeLibrary:
        """The library of a pack with whole models, as they are opened; on a device it is tvm-ffi's, mapped once more."""
        return self._loaded if isinstance(self._loaded, NativeLibrary) else self._again

    @cached_property
    def _again(self) -> NativeLibrary:
        return NativeLibrary(self._place[0])

    def _open(self, pack: Path, gpu: Gpu) -> None:
        """Load the device code, so that no call has to; PackMismatch in the driver's words."""
        try:
            self.function("ht_open")(gpu.ordinal)
        except (RuntimeError, ValueError) as error:
            raise PackMismatch(f"{pack}: {error}") from error

    def _agree(self, pack: Path) -> None:
        """PackInvalid unless the library holds the manifest's ops, plans and kernels in its order: calls go by place."""
        about, ops = self.function("ht_about"), self.manifest.ops
        for index, op in enumerate(ops):
            want = _about(op)
            text = np.zeros(len(want) + 1, np.uint8)
            if about(index, text) != len(want) or text[:-1].tobytes() != want:
                raise PackInvalid(
                    f"{pack}: its library holds another op, plan or kernel than the manifest says at {op.name}"
                )
        if about(len(ops), np.zeros(1, np.uint8)):
            raise PackInvalid(f"{pack}: its library holds more ops than the manifest's {len(ops)}")

    @cached_property
    def _module(self) -> Any:
        """The library as tvm-ffi calls it: what is mapped already."""
        if not isinstance(self._loaded, NativeLibrary):
            return self._loaded
        path, facts = self._place
        module = _load(path, stays=False)
        _check_same(path, facts)
        self.__dict__["_module"] = module  # asked for by what follows
        try:
            self._agree(self._pack)
        except PackInvalid:
            del self.__dict__["_module"]
            raise
        return module

    @cached_property
    def takes_addresses(self) -> bool:
        """True if calls may name numpy's arrays by ``id``, with BY_ADDRESS in the setting."""
        return takes_addresses(self.function)

    def function(self, name: str) -> Callable[..., Any]:
        """One exported function; PackInvalid if the library has no such symbol."""
        try:
            result: Callable[..., Any] = self._module.get_function(name)
        except (AttributeError, RuntimeError, ValueError) as error:
            raise PackInvalid(f"the pack's library has no function {name}: {error}; tune again") from error
        return result


def _about(op: PackOp) -> bytes:
    """Text that the library has of an op that is the manifest's; native/ffi.c writes it."""
    return "\n".join(
        [f"{op.name} {table_name(op.kind)}", "".join(f"{count} " for count in op.threads), *op.kernels, ""]
    ).encode()


_Place = tuple[Path, os.stat_result]


def _checked_and_loaded(folder: Folder, gpu: Gpu | None) -> tuple[Manifest, _Place, Any]:
    """The manifest, the library's file, and the library: as ctypes maps it where there are whole models, else tvm-ffi's."""
    manifest, facts = _checked(folder, gpu)
    path = folder.path.resolve() / manifest.library
    loaded = NativeLibrary(path) if manifest.models and gpu is None else _load(path, stays=manifest.on_device)
    _check_same(path, facts)
    return manifest, (path, facts), loaded


def _check_same(path: Path, facts: os.stat_result) -> None:
    """The loader takes a path, so another pack may have come between; then everything is read again."""
    try:
        same = os.path.samestat(facts, path.stat())
    except OSError:
        same = False
    if not same:
        raise PackInvalid(f"{path}: the file was exchanged while it was loaded; load the pack again")


def _load(path: Path, *, stays: bool) -> Any:
    """Map the library. The path is absolute, because a bare name would be searched for elsewhere.

    ``stays``: for the process, since captured graphs may replay its device code; otherwise until its last function goes.
    """
    import tvm_ffi

    try:
        try:
            return tvm_ffi.load_module(str(path), keep_module_alive=stays)
        except TypeError:  # tvm-ffi before 0.1.6 has no such choice
            return tvm_ffi.load_module(str(path))
    except (OSError, RuntimeError, ValueError) as error:
        raise PackInvalid(f"{path} cannot be loaded: {error}; tune again or restore the pack") from error
