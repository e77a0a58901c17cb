/* How a schedule is written: little-endian int64 words, made by haotuner/spec/bytecode.py. They are the file models/NAME.bytecode of a
 * pack. Kernels of ops and of groups have their names there, and the reader looks them up in the pack's library.
 *
 *   MAGIC, VERSION, how many words in all, a checksum of those behind it (FNV-1a over words),
 *   name, bytes of the weights,
 *   dims:    count, names
 *   sizes:   count, (op, a, b) each; SIZE_NUMBER has its number in a; an operand that is alone stands in both
 *   equal:   count, pairs of lines that a request must make equal
 *   tensors: count, each: name, code, bits, offset among the weights or -1, rank, lines (of a weight: extents).
 *            HT_MODEL_SCALED, of a product's weight in fp32: it lies as bytes, and from the next multiple of four on a number in
 *            fp32 for each of its first axis, by which these are multiplied
 *   inputs:  count, each: name, tensor
 *   outputs: as inputs
 *   ways:    count, each: a line and the most that it may be (the last way: -1, 0), [its outputs' tensors, but of the first way,] steps.
 *            The first way whose line is at most that serves a request. Ways share weights and inputs, no other tensor
 *   steps:   count, each: kind, then
 *            STEP_ALIAS: tensor, the tensor that it is another shape of
 *            STEP_LOOPS: name of the group's function, count, tensors (the outputs last)
 *            STEP_OP:    name of the op, count, operands: role, [name if ROLE_NAMED,] tensor or -1, [a number's bits if -1,]
 *                        rank or -1, lines, axes reordered or 0, [order,] [of ROLE_PART more than the role: the first element of each row of
 *                        the tensor that is taken, and how many are]
 *            STEP_APPEND: tensor of the rows that are there, tensor of new ones, tensor of both, the axis, rank, lines and order of the
 *                        view of the new ones, [of AXIS_PART more than the axis: as ROLE_PART]
 *   caches:  count, the line that is their capacity or -1, each: an input, an output whose first rows it may be, the axis that grows
 *   indices: [left out where none] count, each: an input of whole numbers, the line of the first of its elements that is an index,
 *            count, lines of each axis's extent and stride in elements, the line of how many rows they may choose from, name of
 *            the tensor that asks it
 *   defaults: [left out where none; behind the counts of indices and of what is required and the checks, of a chain behind its way] count, each: an
 *            input that a call may leave out, rank, extents, bytes, then as many words as hold its elements
 *   required: [left out where none, behind the count of indices] count, each: a line that is not 0 at any request that is served,
 *            what to tell the others
 *   checks:  [left out where there are no weights, behind the counts of indices and of what is required] count, CRC-32 of each
 *            HT_MODEL_CHUNK bytes of the file of weights
 *   expected: [left out where none, behind the count of defaults; no chain has any] count, each: threads, bits of two doubles: by which the
 *            lower and the upper end of the band is another time; of each dimension count, sizes; then the bits of the microseconds at
 *            all of these sizes, the last dimension innermost
 * A chain, which is a model whose sizes depend on data, has other steps instead, one way and no weights:
 *            STEP_SEGMENT: name of another model, count, its inputs, count, its outputs
 *            STEP_NONZERO: tensor, the dimension that it tells, tensor of the places of what is not 0
 *            STEP_COUNTED: tensor, which element of it says how many, the dimension, tensor of 0, 1, ...
 *            STEP_RANDOM:  tensor, law (LAW_NORMAL, LAW_UNIFORM), number of the place, whether its seed is fixed, seed, bits of the
 *                          law's two doubles: mean and deviation, or both ends
 *            STEP_TURNS:   a loop: tensors of the most turns, of whether the first one runs, of which turn it is, of whether another
 *                          follows, the dimension that is the number of turns, tensor of 0, 1, ... up to it (each -1: none but the
 *                          turn); count, of each carried value its first, that of a turn, what the turn makes of it, its last or -1;
 *                          count, tensor and the row of it that a turn gets; count, row that a turn makes and the stack of all;
 *                          count, of each size of a carried value that may change: which value, the axis, the dimension of a turn,
 *                          that of the last value or -1; count, the steps of a turn
 *            STEP_DECIDED: a condition, or -1, its line, or -1, the dimension that becomes 1 where it holds, else 0
 *            STEP_CHOSEN:  two tensors, the dimension that is 1 for the first, 0 for the other, tensor that is the one chosen, count,
 *                          its axes that tell a dimension, with these
 *            STEP_WHEN:    a dimension, and the value without which so many steps behind this one are skipped
 *            STEP_REQUIRED: a line, what to tell a request at which it is 0
 * A name is its bytes, then as many words as hold them and a zero behind. */
#ifndef HT_MODEL_WORDS_H_
#define HT_MODEL_WORDS_H_

#include <stdint.h>

#define HT_MODEL_MAGIC 0x4c45444f4d5448 /* "HTMODEL" */
#define HT_MODEL_VERSION 6 /* the only one that is read: a library with another reader lies in a pack with its own words */
#define HT_MODEL_CHUNK ((int64_t)1 << 20)
#define HT_MODEL_HEAD 4 /* words before what the checksum covers */

/* From SIZE_QUOTIENT on: arithmetic in the types of files (haotuner/spec/size_arithmetic.py). Real numbers lie as the bits of doubles. */
enum { SIZE_DIM, SIZE_NUMBER, SIZE_ADD, SIZE_SUB, SIZE_MUL, SIZE_DIV, SIZE_MOD, SIZE_MAXIMUM, SIZE_MINIMUM,
       SIZE_QUOTIENT, SIZE_REAL, SIZE_WHOLE, SIZE_REAL_ADD, SIZE_REAL_SUB, SIZE_REAL_MUL, SIZE_REAL_DIV, SIZE_REAL_MAX, SIZE_REAL_MIN,
       SIZE_REAL_FLOOR, SIZE_REAL_CEIL, SIZE_REAL_ROUND, SIZE_REAL_SQRT, SIZE_TO_FP32, SIZE_TO_FP16, SIZE_TO_BF16,
       SIZE_TO_INT8, SIZE_TO_INT16, SIZE_TO_INT32, SIZE_TO_UINT8, SIZE_TO_UINT16, SIZE_TO_UINT32,
       SIZE_CAPACITY, SIZE_OPS };
enum { STEP_ALIAS, STEP_LOOPS, STEP_OP, STEP_APPEND, STEP_SEGMENT, STEP_NONZERO, STEP_COUNTED, STEP_RANDOM, STEP_TURNS, STEP_DECIDED, STEP_CHOSEN, STEP_WHEN, STEP_REQUIRED, STEP_KINDS };
enum { LAW_NORMAL, LAW_UNIFORM };
enum { ROLE_X, ROLE_WEIGHT, ROLE_OUT, ROLE_NAMED, ROLE_COUNT, ROLE_PART = 8, AXIS_PART = 64 };

#endif /* HT_MODEL_WORDS_H_ */
