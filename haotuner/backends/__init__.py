"""Micro-kernel to object code to library: with microkernels/ the only place that imports tvm."""
