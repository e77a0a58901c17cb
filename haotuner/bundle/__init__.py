"""A bundle for a bare GPU machine: kernels, scripts and shapes in one archive, and what runs there.

Modules that run on the GPU machine import the standard library, tvm-ffi, floor 0 and ``records.codec`` only; the builder
(``build``, ``candidates``, ``libraries``, ``wheels``) stays behind.
"""
