"""A model of Triton's device language on z3 terms: what a kernel's operations mean, for every input at once.

A `Value` is a tensor of one or a few lanes, each a bit-vector. Integers wrap; a float's bits are kept as they are, and
each float operation is one IEEE 754 operation of z3's theory, rounded to nearest even with gradual underflow. Where a
device may choose, the model leaves the choice open, so that a proof covers every choice:

* an arithmetic NaN has any sign and payload;
* `minimum` and `maximum` return the number where the other is NaN, and either zero of a +0 and a -0.

Python numbers take the other operand's type, as in Triton. What is not modelled here raises, and so does everything
that touches memory: these are functions of values.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from lowbit.errors import ArgumentError

Term = Any
"""A z3 expression."""

_fresh = itertools.count()


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
UINT16, INT16 = Dtype("uint16", 16, signed=False), Dtype("int16", 16)
UINT32, INT32 = Dtype("uint32", 32, signed=False), Dtype("int32", 32)
INT64 = Dtype("int64", 64)
FLOAT16, BFLOAT16 = Dtype("float16", 16, exponent_bits=5), Dtype("bfloat16", 16, exponent_bits=8)
FLOAT32 = Dtype("float32", 32, exponent_bits=8)


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
            return self if dtype == self.dtype else _float(dtype, _round_to(dtype), self)
        return Value(dtype, *(_resize(lane, self.dtype, dtype.bits) for lane in self.lanes))

    def __add__(self, other: Any) -> Value:
        return _arithmetic(self, other, lambda a, b: a + b, "fpAdd")

    def __sub__(self, other: Any) -> Value:
        return _arithmetic(self, other, lambda a, b: a - b, "fpSub")

    def __rsub__(self, other: Any) -> Value:
        return _same_type(other, self)[0] - self

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
        return Value(dtype, z3.simplify(z3.fpToIEEEBV(z3.FPVal(number, _sort(dtype)))))
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


def minimum(a: Any, b: Any) -> Value:
    return _extremum(a, b, smaller=True)


def maximum(a: Any, b: Any) -> Value:
    return _extremum(a, b, smaller=False)


def where(condition: Value, a: Any, b: Any) -> Value:
    import z3

    if not isinstance(a, Value) and not isinstance(b, Value):
        dtype = FLOAT32 if isinstance(a, float) or isinstance(b, float) else INT32
        a, b = constant(a, dtype), constant(b, dtype)
    a, b = _same_type(a, b)
    return Value(a.dtype, *_each(lambda c, x, y: z3.If(c == 1, x, y), condition, a, b))


def fma(a: Any, b: Any, c: Any) -> Value:
    import z3

    a, b = _same_type(a, b)
    a, c = _same_type(a, c)
    return _float(a.dtype, lambda x, y, z: z3.fpFMA(z3.RNE(), x, y, z), a, b, c)


def div_rn(a: Any, b: Any) -> Value:
    import z3

    if not isinstance(a, Value) and not isinstance(b, Value):
        a = constant(a, FLOAT32)
    a, b = _same_type(a, b)
    return _float(a.dtype, lambda x, y: z3.fpDiv(z3.RNE(), x, y), a, b)


def absolute(a: Value) -> Value:
    if not a.dtype.is_float:
        raise ArgumentError(f"abs: got {a.dtype.name}, which is not modelled")
    return Value(a.dtype, *(lane & ((1 << a.dtype.bits - 1) - 1) for lane in a.lanes))


def largest(a: Value, axis: int) -> Value:
    """The maximum over all lanes."""
    out = Value(a.dtype, a.lanes[0])
    for lane in a.lanes[1:]:
        out = maximum(out, Value(a.dtype, lane))
    return out


def language() -> SimpleNamespace:
    """What `import triton.language as tl` gives the kernels' sources."""

    def static_assert(condition: Any, message: str = "") -> None:
        if not condition:
            raise ArgumentError(f"static_assert: {message}")

    return SimpleNamespace(
        constexpr=Constexpr.of,
        int1=INT1,
        int16=INT16,
        uint16=UINT16,
        int32=INT32,
        uint32=UINT32,
        int64=INT64,
        float16=FLOAT16,
        bfloat16=BFLOAT16,
        float32=FLOAT32,
        minimum=minimum,
        maximum=maximum,
        where=where,
        fma=fma,
        div_rn=div_rn,
        abs=absolute,
        max=largest,
        full=lambda shape, number, dtype: constant(number, dtype),
        broadcast_to=lambda value, shape: value,
        static_assert=static_assert,
    )


class Constexpr:
    """`tl.constexpr(number)`: the number, with a `value` as Triton's have."""

    class _Int(int):
        @property
        def value(self) -> int:
            return int(self)

    class _Float(float):
        @property
        def value(self) -> float:
            return float(self)

    @staticmethod
    def of(number: Any) -> Any:
        if isinstance(number, int):
            return Constexpr._Int(number)
        return Constexpr._Float(number) if isinstance(number, float) else number


def _each(function: Callable[..., Term], *values: Value) -> list[Term]:
    """A function of each lane; one lane stands for as many as the others have."""
    count = max(len(value.lanes) for value in values)
    return [function(*(v.lanes[i if len(v.lanes) > 1 else 0] for v in values)) for i in range(count)]


def _same_type(a: Any, b: Any) -> tuple[Value, Value]:
    """Both as values of one type: of two integers the wider, at the same width the unsigned."""
    if not isinstance(a, Value):
        b, a = _same_type(b, a)
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

    a, b = _same_type(a, other)
    if not a.dtype.is_float:
        return Value(a.dtype, *_each(on_integers, a, b))
    operation = getattr(z3, name)
    return _float(a.dtype, lambda x, y: operation(z3.RNE(), x, y), a, b)


def _bitwise(a: Value, other: Any, function: Callable[[Term, Term], Term]) -> Value:
    a, b = _same_type(a, other)
    if a.dtype.is_float:
        raise ArgumentError(f"bitwise operation: got {a.dtype.name}, want integers")
    return Value(a.dtype, *_each(function, a, b))


def _compare(
    a: Value, other: Any, on_floats: str, on_unsigned: str | None, on_signed: Callable[[Term, Term], Term]
) -> Value:
    import z3

    a, b = _same_type(a, other)
    if a.dtype.is_float:
        sort, operation = _sort(a.dtype), getattr(z3, on_floats)
        lanes = _each(lambda x, y: operation(z3.fpBVToFP(x, sort), z3.fpBVToFP(y, sort)), a, b)
    else:
        lanes = _each(on_signed if a.dtype.signed or on_unsigned is None else getattr(z3, on_unsigned), a, b)
    return Value(INT1, *(z3.If(lane, z3.BitVecVal(1, 1), z3.BitVecVal(0, 1)) for lane in lanes))


def _extremum(a: Any, b: Any, *, smaller: bool) -> Value:
    import z3

    a, b = _same_type(a, b)
    first = a <= b if smaller else a >= b
    if not a.dtype.is_float:
        return where(first, a, b)
    strictly = a < b if smaller else a > b
    sort = _sort(a.dtype)

    def choose(x: Term, y: Term, le: Term, lt: Term) -> Term:
        either = z3.Bool(f"zero!{next(_fresh)}")  # decides only between equal operands: +0 and -0, or the same bits
        x_nan, y_nan = z3.fpIsNaN(z3.fpBVToFP(x, sort)), z3.fpIsNaN(z3.fpBVToFP(y, sort))
        take_x = z3.Or(y_nan, z3.And(le == 1, z3.Or(lt == 1, either)))
        return z3.If(z3.And(x_nan, y_nan), _any_nan(a.dtype), z3.If(z3.And(take_x, z3.Not(x_nan)), x, y))

    return Value(a.dtype, *_each(choose, a, b, first, strictly))


def _resize(term: Term, source: Dtype, bits: int) -> Term:
    import z3

    if bits <= source.bits:
        return z3.Extract(bits - 1, 0, term) if bits < source.bits else term
    return (z3.SignExt if source.signed else z3.ZeroExt)(bits - source.bits, term)


def _sort(dtype: Dtype) -> Any:
    import z3

    return z3.FPSort(dtype.exponent_bits, dtype.bits - dtype.exponent_bits)


def _round_to(dtype: Dtype) -> Callable[[Term], Term]:
    import z3

    return lambda x: z3.fpFPToFP(z3.RNE(), x, _sort(dtype))


def _any_nan(dtype: Dtype) -> Term:
    import z3

    mantissa_bits = dtype.bits - 1 - dtype.exponent_bits
    sign = z3.BitVec(f"nan_sign!{next(_fresh)}", 1)
    payload = z3.BitVec(f"nan_payload!{next(_fresh)}", mantissa_bits)
    ones = z3.BitVecVal((1 << dtype.exponent_bits) - 1, dtype.exponent_bits)
    return z3.Concat(sign, ones, z3.If(payload == 0, z3.BitVecVal(1, mantissa_bits), payload))


def _float(dtype: Dtype, function: Callable[..., Term], *values: Value) -> Value:
    """The bits of a float operation."""
    import z3

    def lane(*bits: Term) -> Term:
        result = function(*(z3.fpBVToFP(b, _sort(v.dtype)) for b, v in zip(bits, values, strict=True)))
        return z3.If(z3.fpIsNaN(result), _any_nan(dtype), z3.fpToIEEEBV(result))

    return Value(dtype, *_each(lane, *values))
