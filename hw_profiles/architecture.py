"""Architectures by which devices are relatives: one says too much of another to be left in where that is evaluated."""

from __future__ import annotations

from haotuner.spec.device import Device

_RDNA_WAVE = 32  # lanes of a wave of every RDNA device; those with waves of 64 are GCN or CDNA


def architecture(device: Device) -> str:
    """The architecture family of a device, by what its profile says: never by its name.

    CUDA devices go by the major number of their compute capability (Volta and Turing share 7, Ampere and Ada 8: the
    stricter way), AMD's by the width of their waves and whether they have matrix units (RDNA, CDNA, older ones), CPUs by the
    core that the compiler is told, whatever part of its instruction set is used.
    """
    if device.kind == "cuda":
        digits = "".join(c for c in device.arch if c.isdigit())
        return f"cuda {digits[:-1] or digits}.x"
    if device.kind == "hip":
        units = "" if device.wave_width <= _RDNA_WAVE else f", {'with' if device.tensor_tflops else 'no'} matrix units"
        return f"hip, waves of {device.wave_width}{units}"
    return f"{device.kind} {device.arch}"
