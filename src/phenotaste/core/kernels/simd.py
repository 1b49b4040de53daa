"""Eight doubles at a time in compiled loops: a vector type for numba, and the operations the kernels need.

Left to itself LLVM has to prove that arrays do not overlap and to handle the remainder of every row; for rows of 10 or
40 numbers that takes longer than the arithmetic. Arrays used with these operations hold float64 and are zero-padded to
a multiple of eight columns; where a processor has narrower registers, LLVM uses several for one vector.

Besides `jit` this is the only module that uses private parts of numba; `tests/core/test_numba_private.py` names the one
that is missing from an incompatible version.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, models, register_jitable, register_model

from phenotaste.core.kernels.jit import part
from phenotaste.core.records import Array

LANES = 8
DOUBLES = ir.VectorType(ir.DoubleType(), LANES)
INT64S = ir.VectorType(ir.IntType(64), LANES)
LANE_0 = ir.Constant(ir.IntType(32), 0)
ALL_LANE_0 = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
ZEROS = ir.Constant(DOUBLES, [0.0] * LANES)
LANE_INDEX = ir.Constant(INT64S, list(range(LANES)))


operation: Any = intrinsic  # the typing context is passed by numba, not by callers


class Vec8(types.Type):
    """Eight doubles, held in a register."""

    def __init__(self) -> None:
        super().__init__(name="vec8")


VEC8 = Vec8()


@register_model(Vec8)
class Vec8Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, DOUBLES)


def broadcast(builder: Any, kind: Any, value: Any) -> Any:
    """One value in every lane."""
    undefined = ir.Constant(kind, ir.Undefined)
    return builder.shuffle_vector(builder.insert_element(undefined, value, LANE_0), undefined, ALL_LANE_0)


def element_pointer(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    """Pointer to the element of a C-contiguous array at an index, an integer or a tuple."""
    array = context.make_array(kinds[0])(context, builder, values[0])
    several = isinstance(kinds[1], types.BaseTuple)
    parts = list(kinds[1]) if several else [kinds[1]]
    index = cgutils.unpack_tuple(builder, values[1]) if several else [values[1]]
    offset = None
    for axis, (kind, value) in enumerate(zip(parts, index, strict=True)):
        word = context.cast(builder, value, kind, types.intp)
        length = builder.extract_value(array.shape, axis)
        offset = word if offset is None else builder.add(builder.mul(offset, length), word)
    return builder.gep(array.data, [offset])


@operation
def load(typing: Any, array: Any, index: Any) -> Any:
    """Eight numbers from array[index] on."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        pointer = element_pointer(context, builder, signature.args, values)
        return builder.load(builder.bitcast(pointer, DOUBLES.as_pointer()), align=8)

    return VEC8(array, index), code


@operation
def store(typing: Any, array: Any, index: Any, vector: Any) -> Any:
    """Write eight numbers from array[index] on."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        pointer = element_pointer(context, builder, signature.args, values)
        builder.store(values[2], builder.bitcast(pointer, DOUBLES.as_pointer()), align=8)
        return context.get_dummy_value()

    return types.void(array, index, vector), code


@operation
def masked_load(typing: Any, array: Any, index: Any, count: Any) -> Any:
    """The first `count` numbers from array[index] on, then zeros; also from float32."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = ir.VectorType(context.get_value_type(signature.args[0].dtype), LANES)
        pointer = builder.bitcast(
            element_pointer(context, builder, signature.args, values), kind.as_pointer()
        )
        mask = below(context, builder, signature.args[2], values[2])
        size, zeros = context.get_abi_sizeof(kind.element), ir.Constant(kind, [0.0] * LANES)
        arguments = [pointer, ir.Constant(ir.IntType(32), size), mask, zeros]
        shape = ir.FunctionType(kind, [value.type for value in arguments])
        name = f"llvm.masked.load.v8f{8 * size}.p0"
        loaded = builder.call(cgutils.get_or_insert_function(builder.module, shape, name), arguments)
        return loaded if kind == DOUBLES else builder.fpext(loaded, DOUBLES)

    return VEC8(array, index, count), code


def below(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """Mask of the lanes before this one."""
    wide = broadcast(builder, INT64S, context.cast(builder, value, kind, types.intp))
    return builder.icmp_signed("<", LANE_INDEX, wide)


@operation
def broadcast_element(typing: Any, array: Any, offset: Any) -> Any:
    """Element `offset` of a flattened C-contiguous array in every lane."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, values[0])
        word = context.cast(builder, values[1], signature.args[1], types.intp)
        return broadcast(builder, DOUBLES, builder.load(builder.gep(array.data, [word])))

    return VEC8(array, offset), code


@operation
def transpose_strided(
    typing: Any, source: Any, at: Any, stride: Any, target: Any, to: Any, target_stride: Any
) -> Any:
    """Transpose an 8 × 8 block between flattened arrays: its rows begin at source[at], source[at + stride], …"""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kinds = signature.args

        def pointers(array: int) -> list[Any]:
            data = context.make_array(kinds[array])(context, builder, values[array]).data
            offset, stride = (
                context.cast(builder, values[n], kinds[n], types.intp) for n in (array + 1, array + 2)
            )
            first = builder.gep(data, [offset])
            steps = [builder.mul(stride, ir.Constant(ir.IntType(64), i)) for i in range(LANES)]
            return [builder.bitcast(builder.gep(first, [step]), DOUBLES.as_pointer()) for step in steps]

        rows = [builder.load(pointer, align=8) for pointer in pointers(0)]
        for half in (4, 2, 1):  # swap the upper right and lower left quarter of ever smaller blocks
            low = [i + (0 if i & half == 0 else LANES - half) for i in range(LANES)]
            high = [i + (half if i & half == 0 else LANES) for i in range(LANES)]
            kind = ir.VectorType(ir.IntType(32), LANES)
            for i in range(LANES):
                if i & half == 0:
                    a, b = rows[i], rows[i + half]
                    rows[i] = builder.shuffle_vector(a, b, ir.Constant(kind, low))
                    rows[i + half] = builder.shuffle_vector(a, b, ir.Constant(kind, high))
        for row, pointer in zip(rows, pointers(3), strict=True):
            builder.store(row, pointer, align=8)
        return context.get_dummy_value()

    return types.void(source, at, stride, target, to, target_stride), code


@part(inline=True)
def transpose(source: Array, at: tuple[int, int], target: Array, to: tuple[int, int]) -> None:
    """Transpose the 8 × 8 block at source[at] into target[to]."""
    width, target_width = source.shape[1], target.shape[1]
    transpose_strided(
        source, at[0] * width + at[1], width, target, to[0] * target_width + to[1], target_width
    )


@operation
def splat(typing: Any, number: Any) -> Any:
    """One number in every lane."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return broadcast(builder, DOUBLES, context.cast(builder, values[0], signature.args[0], types.float64))

    return VEC8(number), code


@operation
def fma(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """a·b + c."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        shape = ir.FunctionType(DOUBLES, [DOUBLES] * 3)
        function = cgutils.get_or_insert_function(builder.module, shape, "llvm.fmuladd.v8f64")
        return builder.call(function, values)

    return VEC8(a, b, c), code


@operation
def fnma(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """c − a·b."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        shape = ir.FunctionType(DOUBLES, [DOUBLES] * 3)
        function = cgutils.get_or_insert_function(builder.module, shape, "llvm.fmuladd.v8f64")
        return builder.call(function, [builder.fneg(values[0]), values[1], values[2]])

    return VEC8(a, b, c), code


@operation
def lane_sum(typing: Any, vector: Any) -> Any:
    """The sum of the lanes, in a fixed order."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        left = values[0]
        for half in (4, 2, 1):
            kind = ir.VectorType(ir.IntType(32), half)
            undefined = ir.Constant(left.type, ir.Undefined)
            low = builder.shuffle_vector(left, undefined, ir.Constant(kind, list(range(half))))
            high = builder.shuffle_vector(left, undefined, ir.Constant(kind, list(range(half, 2 * half))))
            left = builder.fadd(low, high)
        return builder.extract_element(left, LANE_0)

    return types.float64(vector), code


@operation
def positive_part(typing: Any, vector: Any) -> Any:
    """max(0, x) in every lane; NaN propagates."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", values[0], ZEROS), ZEROS, values[0])

    return VEC8(vector), code


@operation
def minimum(typing: Any, a: Any, b: Any) -> Any:
    """min(a, b) in every lane; NaN in b propagates."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", values[0], values[1]), *values)

    return VEC8(a, b), code


@operation
def where_greater(typing: Any, a: Any, b: Any, yes: Any, no: Any) -> Any:
    """`yes` in every lane where a > b, `no` elsewhere, including where a or b is NaN."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", values[0], values[1]), values[2], values[3])

    return VEC8(a, b, yes, no), code


@operation
def sqrt(typing: Any, vector: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        shape = ir.FunctionType(DOUBLES, [DOUBLES])
        function = cgutils.get_or_insert_function(builder.module, shape, "llvm.sqrt.v8f64")
        return builder.call(function, values)

    return VEC8(vector), code


@operation
def keep_after(typing: Any, vector: Any, lane: Any) -> Any:
    """The lanes after this one, and zeros up to it."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        wide = broadcast(builder, INT64S, context.cast(builder, values[1], signature.args[1], types.intp))
        return builder.select(builder.icmp_signed(">", LANE_INDEX, wide), values[0], ZEROS)

    return VEC8(vector, lane), code


@operation
def set_lane(typing: Any, vector: Any, lane: Any, number: Any) -> Any:
    """The vector with another number in one lane; unchanged if the lane does not exist."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        wide = broadcast(builder, INT64S, context.cast(builder, values[1], signature.args[1], types.intp))
        number = broadcast(builder, DOUBLES, values[2])
        return builder.select(builder.icmp_signed("==", LANE_INDEX, wide), number, values[0])

    return VEC8(vector, lane, number), code


def register_operator(symbol: Callable[..., Any], instruction: str) -> None:
    """Compile an operator between vectors to one instruction."""

    @infer_global(symbol)
    class Template(AbstractTemplate):  # registered with numba by the decorator
        def generic(self, given: Any, _: Any) -> Any:
            vectors = len(given) == 2 and all(isinstance(kind, Vec8) for kind in given)
            return signature(VEC8, *given) if vectors else None

    @lower_builtin(symbol, VEC8, VEC8)
    def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return getattr(builder, instruction)(*values)


register_operator(operator.add, "fadd")
register_operator(operator.sub, "fsub")
register_operator(operator.mul, "fmul")
register_operator(operator.truediv, "fdiv")


@register_jitable
def round_up(n: int) -> int:
    """n rounded up to a multiple of the vector length."""
    return (n + LANES - 1) // LANES * LANES


def aligned_matrix(rows: int, columns: int) -> Array:
    """Zeros, both sides padded to a multiple of 8, aligned to cache lines: a load across two takes twice as long."""
    rows, columns = -(-rows // LANES) * LANES, -(-columns // LANES) * LANES
    buffer = np.zeros(rows * columns + LANES)
    skip = -buffer.ctypes.data % (8 * LANES) // 8
    return buffer[skip : skip + rows * columns].reshape(rows, columns)


def aligned_vector(n: int) -> Array:
    """The same in one dimension."""
    n = -(-n // LANES) * LANES
    buffer = np.zeros(n + LANES)
    skip = -buffer.ctypes.data % (8 * LANES) // 8
    return buffer[skip : skip + n]
