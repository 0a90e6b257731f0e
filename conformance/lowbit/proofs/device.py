"""A model of Triton's device values on z3 terms: what operations on them mean, for every input at once.

A `Value` is a tensor of one or a few lanes, each a bit-vector. Integers wrap; a float's bits are kept as they are, and
each float operation is one IEEE 754 operation of z3's theory, rounded to nearest even with gradual underflow; a product
and a sum are not fused, as the kernels are compiled. Where devices differ, the model leaves the choice open, so that a
proof covers every choice:

* a NaN result is quiet and has any payload, the same one for the same operation and operands; its sign is positive or
  that of a NaN operand (NVIDIA's NaN is always positive, others hand on an operand), and out of an invalid operation
  either;
* `minimum` and `maximum` return the number where the other is NaN, and either zero of a +0 and a -0.

Python numbers take the other operand's type, as in Triton. What is not modelled raises, and so does everything that
touches memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lowbit.errors import ArgumentError

Term = Any
"""A z3 expression."""

_operations: dict[int, tuple[Term, int]] = {}
"""z3's identity of an operation's result → the result, kept so that its identity stays its own, and a number."""


@dataclass(frozen=True)
class Dtype:
    """A scalar type: its width, and what its bits are."""

    name: str
    bits: int
    signed: bool = True
    exponent_bits: int = 0  # above 0 for floats

    @property
    def is_float(self) -> bool:
        return self.exponent_bits > 0


INT1 = Dtype("int1", 1, signed=False)
UINT8 = Dtype("uint8", 8, signed=False)
UINT16, INT16 = Dtype("uint16", 16, signed=False), Dtype("int16", 16)
UINT32, INT32 = Dtype("uint32", 32, signed=False), Dtype("int32", 32)
INT64 = Dtype("int64", 64)
FLOAT16, BFLOAT16 = Dtype("float16", 16, exponent_bits=5), Dtype("bfloat16", 16, exponent_bits=8)
FLOAT32 = Dtype("float32", 32, exponent_bits=8)
DTYPES = {dtype.name: dtype for dtype in (INT1, UINT8, UINT16, INT16, UINT32, INT32, INT64, FLOAT16, BFLOAT16, FLOAT32)}


class Value:
    """A device value of a type, as bit-vectors of its lanes."""

    __slots__ = ("dtype", "lanes")
    __hash__ = None  # type: ignore[assignment]  # equality is a device operation

    def __init__(self, dtype: Dtype, *lanes: Term):
        self.dtype = dtype
        self.lanes = lanes

    @property
    def bits(self) -> Term:
        """The bits of the only lane."""
        (lane,) = self.lanes
        return lane

    @property
    def shape(self) -> tuple[()]:
        return ()

    def __getitem__(self, index: Any) -> Value:
        return self  # x[:, None] changes no value

    def to(self, dtype: Dtype, bitcast: bool = False) -> Value:
        """A cast: of integers by width, of floats to nearest even; or the same bits under another type."""
        if bitcast:
            if dtype.bits != self.dtype.bits:
                raise ArgumentError(f"bitcast: got {self.dtype.name} to {dtype.name}, want the same width")
            return Value(dtype, *self.lanes)
        if dtype.is_float != self.dtype.is_float:
            raise ArgumentError(f"to: got {self.dtype.name} to {dtype.name}, which is not modelled")
        if dtype.is_float:
            return self if dtype == self.dtype else float_operation(dtype, _round_to(dtype), self)
        return Value(dtype, *(_resize(lane, self.dtype, dtype.bits) for lane in self.lanes))

    def __add__(self, other: Any) -> Value:
        return _arithmetic(self, other, lambda a, b: a + b, "fpAdd")

    def __sub__(self, other: Any) -> Value:
        return _arithmetic(self, other, lambda a, b: a - b, "fpSub")

    def __rsub__(self, other: Any) -> Value:
        return same_type(other, self)[0] - self

    def __mul__(self, other: Any) -> Value:
        return _arithmetic(self, other, lambda a, b: a * b, "fpMul")

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Value:
        if self.dtype.is_float:
            return Value(self.dtype, *(lane ^ (1 << self.dtype.bits - 1) for lane in self.lanes))
        return Value(self.dtype, *(-lane for lane in self.lanes))

    def __and__(self, other: Any) -> Value:
        return _bitwise(self, other, lambda a, b: a & b)

    def __or__(self, other: Any) -> Value:
        return _bitwise(self, other, lambda a, b: a | b)

    def __xor__(self, other: Any) -> Value:
        return _bitwise(self, other, lambda a, b: a ^ b)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __invert__(self) -> Value:
        return _bitwise(self, -1, lambda a, b: a ^ b)

    def __lshift__(self, other: Any) -> Value:
        return _bitwise(self, other, lambda a, b: a << b)

    def __rshift__(self, other: Any) -> Value:
        import z3

        return _bitwise(self, other, (lambda a, b: a >> b) if self.dtype.signed else z3.LShR)

    def __lt__(self, other: Any) -> Value:
        return _compare(self, other, "fpLT", "ULT", lambda a, b: a < b)

    def __le__(self, other: Any) -> Value:
        return _compare(self, other, "fpLEQ", "ULE", lambda a, b: a <= b)

    def __gt__(self, other: Any) -> Value:
        return _compare(self, other, "fpGT", "UGT", lambda a, b: a > b)

    def __ge__(self, other: Any) -> Value:
        return _compare(self, other, "fpGEQ", "UGE", lambda a, b: a >= b)

    def __eq__(self, other: Any) -> Value:  # type: ignore[override]
        return _compare(self, other, "fpEQ", None, lambda a, b: a == b)

    def __bool__(self) -> bool:
        raise ArgumentError("a device value decides a branch of the kernel's Python, want a constexpr")


def constant(number: float, dtype: Dtype) -> Value:
    """A number in a type; a float is rounded to nearest even.

    Raises:
      ArgumentError: an integer that the type does not hold.
    """
    import z3

    if dtype.is_float:
        return Value(dtype, z3.simplify(z3.fpToIEEEBV(z3.FPVal(number, sort_of(dtype)))))
    if not -(1 << dtype.bits - 1) <= number < 1 << dtype.bits or number != int(number):
        raise ArgumentError(f"number: got {number}, want one that {dtype.name} holds")
    return Value(dtype, z3.BitVecVal(int(number), dtype.bits))


def variable(name: str, dtype: Dtype) -> Value:
    """Any value of a type."""
    import z3

    return Value(dtype, z3.BitVec(name, dtype.bits))


def pattern(value: Value) -> int:
    """The bits of a constant value."""
    import z3

    return int(z3.simplify(value.bits).as_long())


def of_pattern(bits: int, dtype: Dtype) -> Value:
    """The constant of these bits."""
    import z3

    return Value(dtype, z3.BitVecVal(bits, dtype.bits))


def simplified(value: Value) -> Value:
    """The same value in the fewest terms: of constants, a constant."""
    import z3

    return Value(value.dtype, *map(z3.simplify, value.lanes))


def each(function: Callable[..., Term], *values: Value) -> list[Term]:
    """A function of each lane; one lane stands for as many as the others have."""
    count = max(len(value.lanes) for value in values)
    return [function(*(v.lanes[i if len(v.lanes) > 1 else 0] for v in values)) for i in range(count)]


def same_type(a: Any, b: Any) -> tuple[Value, Value]:
    """Both as values of one type: of two integers the wider, at the same width the unsigned."""
    if not isinstance(a, Value):
        b, a = same_type(b, a)
        return a, b
    if not isinstance(b, Value):
        return a, constant(b, a.dtype)
    if a.dtype == b.dtype:
        return a, b
    if a.dtype.is_float or b.dtype.is_float:
        raise ArgumentError(f"operands: got {a.dtype.name} and {b.dtype.name}, which is not modelled")
    dtype = max(a.dtype, b.dtype, key=lambda d: (d.bits, not d.signed))
    return a.to(dtype), b.to(dtype)


def _arithmetic(a: Value, other: Any, on_integers: Callable[[Term, Term], Term], name: str) -> Value:
    import z3

    a, b = same_type(a, other)
    if not a.dtype.is_float:
        return Value(a.dtype, *each(on_integers, a, b))
    operation = getattr(z3, name)
    return float_operation(a.dtype, lambda x, y: operation(z3.RNE(), x, y), a, b)


def _bitwise(a: Value, other: Any, function: Callable[[Term, Term], Term]) -> Value:
    a, b = same_type(a, other)
    if a.dtype.is_float:
        raise ArgumentError(f"bitwise operation: got {a.dtype.name}, want integers")
    return Value(a.dtype, *each(function, a, b))


def _compare(
    a: Value, other: Any, on_floats: str, on_unsigned: str | None, on_signed: Callable[[Term, Term], Term]
) -> Value:
    import z3

    a, b = same_type(a, other)
    if a.dtype.is_float:
        sort, operation = sort_of(a.dtype), getattr(z3, on_floats)
        lanes = each(lambda x, y: operation(z3.fpBVToFP(x, sort), z3.fpBVToFP(y, sort)), a, b)
    else:
        lanes = each(on_signed if a.dtype.signed or on_unsigned is None else getattr(z3, on_unsigned), a, b)
    return Value(INT1, *(z3.If(lane, z3.BitVecVal(1, 1), z3.BitVecVal(0, 1)) for lane in lanes))


def _resize(term: Term, source: Dtype, bits: int) -> Term:
    import z3

    if bits <= source.bits:
        return z3.Extract(bits - 1, 0, term) if bits < source.bits else term
    return (z3.SignExt if source.signed else z3.ZeroExt)(bits - source.bits, term)


def sort_of(dtype: Dtype) -> Any:
    """z3's sort of a float type."""
    import z3

    return z3.FPSort(dtype.exponent_bits, dtype.bits - dtype.exponent_bits)


def _round_to(dtype: Dtype) -> Callable[[Term], Term]:
    import z3

    return lambda x: z3.fpFPToFP(z3.RNE(), x, sort_of(dtype))


def number_of(result: Term) -> int:
    """One number for each operation on given operands."""
    return _operations.setdefault(result.get_id(), (result, len(_operations)))[1]


def nan_of(result: Term, dtype: Dtype, *operands: tuple[Term, Dtype]) -> Term:
    """The bits of the NaN that an operation gives."""
    import z3

    nans = [z3.fpIsNaN(z3.fpBVToFP(bits, sort_of(source))) for bits, source in operands]
    signs = [z3.Extract(source.bits - 1, source.bits - 1, bits) == 1 for bits, source in operands]
    handed_on = z3.Or(*(z3.And(*both) for both in zip(nans, signs, strict=True)))
    negative = z3.And(z3.Bool(f"nan_sign!{number_of(result)}"), z3.Or(z3.Not(z3.Or(*nans)), handed_on))
    mantissa_bits = dtype.bits - 1 - dtype.exponent_bits
    payload = z3.BitVec(f"nan_payload!{number_of(result)}", mantissa_bits)
    return z3.Concat(
        z3.If(negative, z3.BitVecVal(1, 1), z3.BitVecVal(0, 1)),
        z3.BitVecVal((1 << dtype.exponent_bits) - 1, dtype.exponent_bits),
        payload | 1 << mantissa_bits - 1,
    )


def float_operation(dtype: Dtype, function: Callable[..., Term], *values: Value) -> Value:
    """The bits of a float operation."""
    import z3

    def lane(*bits: Term) -> Term:
        operands = [(b, v.dtype) for b, v in zip(bits, values, strict=True)]
        result = function(*(z3.fpBVToFP(b, sort_of(source)) for b, source in operands))
        return z3.If(z3.fpIsNaN(result), nan_of(result, dtype, *operands), z3.fpToIEEEBV(result))

    return Value(dtype, *each(lane, *values))
