"""Predicted times of micro-kernels on a device: an analytic model and a learned one."""
