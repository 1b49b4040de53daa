"""Eight doubles at a time in compiled loops: a vector type for numba, and the few operations the kernels need.

Left to itself LLVM has to prove that arrays do not overlap and to deal with what is left over at the end of a row; for
rows of 10 or 40 numbers that takes longer than the arithmetic. Arrays used with these operations are padded with zeros
to whole vectors and hold float64; where a processor has narrower registers LLVM takes several for one vector.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, models, register_model

from phenotaste.core.records import Array

LANES = 8
DOUBLES = ir.VectorType(ir.DoubleType(), LANES)
WORDS = ir.VectorType(ir.IntType(64), LANES)
BITS = ir.VectorType(ir.IntType(1), LANES)
FIRST = ir.Constant(ir.IntType(32), 0)
EVERYWHERE = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
ZEROS = ir.Constant(DOUBLES, [0.0] * LANES)
COUNT = ir.Constant(WORDS, list(range(LANES)))


operation: Any = intrinsic  # what it makes is called with one argument fewer than it is written with


class Vector(types.Type):
    """Eight doubles, held in a register."""

    def __init__(self) -> None:
        super().__init__(name="eight doubles")


VECTOR = Vector()


@register_model(Vector)
class VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, DOUBLES)


def spread(builder: Any, kind: Any, value: Any) -> Any:
    """One value in every lane."""
    nothing = ir.Constant(kind, ir.Undefined)
    return builder.shuffle_vector(builder.insert_element(nothing, value, FIRST), nothing, EVERYWHERE)


def place(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    """Where the element with this index, a number or a tuple, lies in a C-contiguous array."""
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
    """The eight numbers that begin at array[index]."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        pointer = place(context, builder, signature.args, values)
        return builder.load(builder.bitcast(pointer, DOUBLES.as_pointer()), align=8)

    return VECTOR(array, index), code


@operation
def store(typing: Any, array: Any, index: Any, vector: Any) -> Any:
    """Write eight numbers from array[index] on."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        pointer = place(context, builder, signature.args, values)
        builder.store(values[2], builder.bitcast(pointer, DOUBLES.as_pointer()), align=8)
        return context.get_dummy_value()

    return types.void(array, index, vector), code


@operation
def load_some(typing: Any, array: Any, index: Any, count: Any) -> Any:
    """The first `count` numbers from array[index] on and zeros after them, from float32 too."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = ir.VectorType(context.get_value_type(signature.args[0].dtype), LANES)
        pointer = builder.bitcast(place(context, builder, signature.args, values), kind.as_pointer())
        mask = below(context, builder, signature.args[2], values[2])
        size, zeros = context.get_abi_sizeof(kind.element), ir.Constant(kind, [0.0] * LANES)
        given = [pointer, ir.Constant(ir.IntType(32), size), mask, zeros]
        shape = ir.FunctionType(kind, [value.type for value in given])
        name = f"llvm.masked.load.v8f{8 * size}.p0"
        found = builder.call(cgutils.get_or_insert_function(builder.module, shape, name), given)
        return found if kind == DOUBLES else builder.fpext(found, DOUBLES)

    return VECTOR(array, index, count), code


def below(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """Which lanes come before this one."""
    wide = spread(builder, WORDS, context.cast(builder, value, kind, types.intp))
    return builder.icmp_signed("<", COUNT, wide)


@operation
def spread_from(typing: Any, array: Any, offset: Any) -> Any:
    """One number of a C-contiguous array in every lane; the offset counts from its very first, row after row."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, values[0])
        word = context.cast(builder, values[1], signature.args[1], types.intp)
        return spread(builder, DOUBLES, builder.load(builder.gep(array.data, [word])))

    return VECTOR(array, offset), code


@operation
def transpose(typing: Any, source: Any, at: Any, target: Any, to: Any) -> Any:
    """The 8 × 8 block at source[at], turned over, into target[to]; both indices are pairs."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kinds, step = signature.args, ir.IntType(64)
        first = place(context, builder, kinds[:2], values[:2])
        width = builder.extract_value(context.make_array(kinds[0])(context, builder, values[0]).shape, 1)
        rows = []
        for i in range(LANES):
            pointer = builder.gep(first, [builder.mul(width, ir.Constant(step, i))])
            rows.append(builder.load(builder.bitcast(pointer, DOUBLES.as_pointer()), align=8))
        for half in (4, 2, 1):  # swap the upper right and lower left quarter of ever smaller blocks
            low = [i + (0 if i & half == 0 else LANES - half) for i in range(LANES)]
            high = [i + (half if i & half == 0 else LANES) for i in range(LANES)]
            kind = ir.VectorType(ir.IntType(32), LANES)
            for i in range(LANES):
                if i & half == 0:
                    a, b = rows[i], rows[i + half]
                    rows[i] = builder.shuffle_vector(a, b, ir.Constant(kind, low))
                    rows[i + half] = builder.shuffle_vector(a, b, ir.Constant(kind, high))
        first = place(context, builder, kinds[2:], values[2:])
        width = builder.extract_value(context.make_array(kinds[2])(context, builder, values[2]).shape, 1)
        for i in range(LANES):
            pointer = builder.gep(first, [builder.mul(width, ir.Constant(step, i))])
            builder.store(rows[i], builder.bitcast(pointer, DOUBLES.as_pointer()), align=8)
        return context.get_dummy_value()

    return types.void(source, at, target, to), code


@operation
def splat(typing: Any, number: Any) -> Any:
    """One number in every lane."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return spread(builder, DOUBLES, context.cast(builder, values[0], signature.args[0], types.float64))

    return VECTOR(number), code


@operation
def fma(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """a·b + c."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        shape = ir.FunctionType(DOUBLES, [DOUBLES] * 3)
        function = cgutils.get_or_insert_function(builder.module, shape, "llvm.fmuladd.v8f64")
        return builder.call(function, values)

    return VECTOR(a, b, c), code


@operation
def fnma(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """c − a·b."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        shape = ir.FunctionType(DOUBLES, [DOUBLES] * 3)
        function = cgutils.get_or_insert_function(builder.module, shape, "llvm.fmuladd.v8f64")
        return builder.call(function, [builder.fneg(values[0]), values[1], values[2]])

    return VECTOR(a, b, c), code


@operation
def total(typing: Any, vector: Any) -> Any:
    """The sum of the lanes, always added in the same order."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        left = values[0]
        for half in (4, 2, 1):
            kind = ir.VectorType(ir.IntType(32), half)
            nothing = ir.Constant(left.type, ir.Undefined)
            low = builder.shuffle_vector(left, nothing, ir.Constant(kind, list(range(half))))
            high = builder.shuffle_vector(left, nothing, ir.Constant(kind, list(range(half, 2 * half))))
            left = builder.fadd(low, high)
        return builder.extract_element(left, FIRST)

    return types.float64(vector), code


@operation
def positive(typing: Any, vector: Any) -> Any:
    """max(0, x) in every lane; what is no number stays none."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", values[0], ZEROS), ZEROS, values[0])

    return VECTOR(vector), code


@operation
def smaller(typing: Any, a: Any, b: Any) -> Any:
    """The smaller of two in every lane; what is no number in b stays none."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", values[0], values[1]), *values)

    return VECTOR(a, b), code


@operation
def where_above(typing: Any, a: Any, b: Any, yes: Any, no: Any) -> Any:
    """`yes` in every lane where a > b, `no` in all others, also where one of them is no number."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", values[0], values[1]), values[2], values[3])

    return VECTOR(a, b, yes, no), code


@operation
def square_root(typing: Any, vector: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        shape = ir.FunctionType(DOUBLES, [DOUBLES])
        function = cgutils.get_or_insert_function(builder.module, shape, "llvm.sqrt.v8f64")
        return builder.call(function, values)

    return VECTOR(vector), code


@operation
def after(typing: Any, vector: Any, lane: Any) -> Any:
    """The lanes after this one, and zeros up to it."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        wide = spread(builder, WORDS, context.cast(builder, values[1], signature.args[1], types.intp))
        return builder.select(builder.icmp_signed(">", COUNT, wide), values[0], ZEROS)

    return VECTOR(vector, lane), code


@operation
def replaced(typing: Any, vector: Any, lane: Any, number: Any) -> Any:
    """The vector with another number in one lane; unchanged where there is no such lane."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        wide = spread(builder, WORDS, context.cast(builder, values[1], signature.args[1], types.intp))
        number = spread(builder, DOUBLES, values[2])
        return builder.select(builder.icmp_signed("==", COUNT, wide), number, values[0])

    return VECTOR(vector, lane, number), code


def define(symbol: Callable[..., Any], instruction: str) -> None:
    """An operator between vectors is one instruction."""

    @infer_global(symbol)
    class Template(AbstractTemplate):  # numba looks for it in its registry
        def generic(self, given: Any, _: Any) -> Any:
            vectors = len(given) == 2 and all(isinstance(kind, Vector) for kind in given)
            return signature(VECTOR, *given) if vectors else None

    @lower_builtin(symbol, VECTOR, VECTOR)
    def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return getattr(builder, instruction)(*values)


define(operator.add, "fadd")
define(operator.sub, "fsub")
define(operator.mul, "fmul")
define(operator.truediv, "fdiv")


@njit(inline="always")
def whole(n: int) -> int:
    """n rounded up to whole vectors."""
    return (n + LANES - 1) // LANES * LANES


def matrix(rows: int, columns: int) -> Array:
    """Zeros, padded to whole vectors, on a boundary of cache lines: a vector across two of them takes twice as long."""
    rows, columns = -(-rows // LANES) * LANES, -(-columns // LANES) * LANES
    room = np.zeros(rows * columns + LANES)
    skip = -room.ctypes.data % (8 * LANES) // 8
    return room[skip : skip + rows * columns].reshape(rows, columns)


def column(n: int) -> Array:
    """The same in one dimension."""
    return matrix(LANES, n)[0]
