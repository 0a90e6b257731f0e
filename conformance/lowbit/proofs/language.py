"""The functions of Triton's device language on the model of its values, and the module that kernels import."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lowbit.errors import ArgumentError
from lowbit.proofs import device
from lowbit.proofs.device import (
    FLOAT32,
    INT32,
    Term,
    Value,
    constant,
    each,
    float_operation,
    nan_of,
    number_of,
    same_type,
    sort_of,
)


def minimum(a: Any, b: Any) -> Value:
    return _extremum(a, b, smaller=True)


def maximum(a: Any, b: Any) -> Value:
    return _extremum(a, b, smaller=False)


def where(condition: Value, a: Any, b: Any) -> Value:
    import z3

    if not isinstance(a, Value) and not isinstance(b, Value):
        dtype = FLOAT32 if isinstance(a, float) or isinstance(b, float) else INT32
        a, b = constant(a, dtype), constant(b, dtype)
    a, b = same_type(a, b)
    return Value(a.dtype, *each(lambda c, x, y: z3.If(c == 1, x, y), condition, a, b))


def fma(a: Any, b: Any, c: Any) -> Value:
    import z3

    a, b = same_type(a, b)
    a, c = same_type(a, c)
    return float_operation(a.dtype, lambda x, y, z: z3.fpFMA(z3.RNE(), x, y, z), a, b, c)


def div_rn(a: Any, b: Any) -> Value:
    import z3

    if not isinstance(a, Value) and not isinstance(b, Value):
        a = constant(a, FLOAT32)
    a, b = same_type(a, b)
    return float_operation(a.dtype, lambda x, y: z3.fpDiv(z3.RNE(), x, y), a, b)


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
        **device.DTYPES,
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


def _extremum(a: Any, b: Any, *, smaller: bool) -> Value:
    import z3

    a, b = same_type(a, b)
    first = a <= b if smaller else a >= b
    if not a.dtype.is_float:
        return where(first, a, b)
    strictly = a < b if smaller else a > b
    sort = sort_of(a.dtype)
    operation = z3.fpMin if smaller else z3.fpMax  # z3's leaves NaN and zeros open in its own way: only a name here

    def choose(x: Term, y: Term, le: Term, lt: Term) -> Term:
        x_value, y_value = z3.fpBVToFP(x, sort), z3.fpBVToFP(y, sort)
        result = operation(x_value, y_value)
        either = z3.Bool(f"zero!{number_of(result)}")  # decides between equal operands only, +0 and -0 or the same
        x_nan, y_nan = z3.fpIsNaN(x_value), z3.fpIsNaN(y_value)
        take_x = z3.And(z3.Not(x_nan), z3.Or(y_nan, z3.And(le == 1, z3.Or(lt == 1, either))))
        nan = nan_of(result, a.dtype, (x, a.dtype), (y, a.dtype))
        return z3.If(z3.And(x_nan, y_nan), nan, z3.If(take_x, x, y))

    return Value(a.dtype, *each(choose, a, b, first, strictly))
