"""Schedules of packs made before version 2 of the models' door: constants of the library, opened by their index there."""

from __future__ import annotations

import ctypes
from typing import Any

from haotuner.errors import PackInvalid

VERSION = 1  # of runtime/native/model/model_api.h: HT_MODEL_DOOR_COMPILED
_COMPARED = 3  # the first version of bytecode that has checksums of weights
_VERSION_AT, _NAME_AT = 8, 5 * 8  # bytes into a schedule
_I, _P = ctypes.c_int, ctypes.c_void_p
_SAID = (_P, _P, ctypes.c_size_t)  # kind, text, room
_OPEN = ctypes.CFUNCTYPE(_I, _I, _I, _I, _P, *_SAID)


class CompiledSchedules:
    """Schedules that a library itself holds; none of a newer one."""

    def __init__(self, library: ctypes.CDLL, door: Any) -> None:
        self._door = door
        self.names: list[str] = []
        if door.version != VERSION:
            return
        every = [door.compiled_words(index, ctypes.byref(ctypes.c_int64())) for index in range(door.compiled)]
        self.names = [ctypes.string_at(at + _NAME_AT).decode() for at in every]
        self._open = ctypes.cast(door.open, _OPEN)
        self._open_on, self._open_unchecked = (
            getattr(library, f"ht_pack_model_open_{name}", None) for name in ("on", "unchecked")
        )  # packs made before them serve CPUs, or check nothing
        for function in (self._open_on, self._open_unchecked):
            if function is not None:
                function.argtypes, function.restype = (_I, _I, _I, _I, _P, *_SAID), _I

    def find(self, name: str) -> int:
        """Index of a model; PackInvalid where the library holds none of that name."""
        if name in self.names:
            return self.names.index(name)
        raise PackInvalid(f"the pack's library holds no model {name!r}, as its manifest says; tune again")

    def compares_weights(self, name: str) -> bool:
        """True if opening a model compares its weights with checksums; chains have no weights."""
        if name not in self.names:
            return True
        at = self._door.compiled_words(self.find(name), ctypes.byref(ctypes.c_int64()))
        return ctypes.c_int64.from_address(at + _VERSION_AT).value >= _COMPARED

    def open_model(self, name: str, weights: int, check: bool, device: int | None, threads: int, *out: Any) -> int:
        """Open a model: 0, or another number where it is refused. As ``NativeLibrary.open_model``."""
        index = self.find(name)
        if not check and self._open_unchecked is not None:
            return int(self._open_unchecked(index, weights, device or 0, threads, *out))
        if device is None:
            return int(self._open(index, weights, threads, *out))
        if self._open_on is None:
            raise PackInvalid(f"the pack's library opens {name} on no GPU; tune again")
        return int(self._open_on(index, weights, device, threads, *out))
