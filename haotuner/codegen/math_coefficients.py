"""Coefficients of exp, log, tanh and erf of float32, within 2 ulp: for TVM programs (``vector_math.py``) and for loops in C.

Polynomials are near-minimax fits (reweighted least squares at Chebyshev nodes), arranged as Cody and Waite do (1980).
"""

from __future__ import annotations

LOG2_E = 1.4426950408889634
TO_WHOLE = 1.5 * 2.0**23  # what is added to it is rounded to a whole number; one instruction less than asking for that
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4  # their sum is ln 2; the first has few bits, so n * LN2_HIGH is exact
EXP = (0.5, 0.16666516661643982, 0.04166620224714279, 0.008369073271751404, 0.001395080122165382)
EXP_OF_LESS = tuple(item * (-1) ** index for index, item in enumerate(EXP))  # of e^-r
ERF_SMALL = (0.12837916612625122, -0.37612634897232056, 0.11283694207668304, -0.02685927040874958, 0.005200634244829416,
             -0.0008137435652315617, 8.345216338057071e-05)  # fmt: skip
ERF_LARGE = (-0.12864850461483002, -0.6351512670516968, -0.10623694211244583, 0.02376212179660797, -0.0036424880381673574,
             0.00032281133462674916, -1.1232086762902327e-05)  # fmt: skip
ERF_SPLIT, ERF_END = 0.92, 4.0  # erf is 1 in float32 from 3.92 on
LOG = (0.3333331048488617, -0.24999986588954926, 0.20002155005931854, -0.1666918843984604, 0.14219848811626434,
       -0.12385925650596619, 0.11866694688796997, -0.11779095232486725, 0.06915716826915741)  # fmt: skip
TANH = (-0.3333326280117035, 0.1333089917898178, -0.053692955523729324, 0.02048327773809433, -0.0055285971611738205)
EXP_ZERO = -103.98  # e^x rounds to 0 below: half of the least subnormal is 2^-150
TANH_SPLIT, TANH_END = 0.625, 10.0  # tanh is 1 in float32 from 9.02 on
