"""Between a call and its kernels: argument checks, views, device and block size, registration with torch.library.

    INTERPRETED                                        True where kernels run in Triton's interpreter, on CPU tensors
    require_input(name, x)                             device, dtype (float32, bfloat16, float16), one dimension or more
    require_bytes(name, tensor, dtype, device=None)    a uint8 view of a tensor of uint8 or of that 1-byte dtype
    require_float(name, dtype)                         dtype of a decoded result
    require_random(name, bits, ...)                    a contiguous tensor of random bits, or None
    require_key(seed, needed_by) -> (low, high)        the halves of a 64-bit seed as signed 32-bit integers
    choose(name, value, known, hint=None) -> number    a name's constexpr, or an error that lists the names
    bytes_of(tensor) -> tensor                         a 1-byte dtype as uint8
    rows_of(x) -> (x2d, row_stride, column_stride)     2-D view, a copy only where no view exists
    pad_last_dimension(x, multiple)                    x with zeros appended to its last dimension
    launch(kernel, grid, tensor, *args, **options)     on the tensor's device and the current stream, without fusing
    takes_ptx(tensor) -> bool                          whether kernels on its device can hold PTX
    tile(rows, groups, group_size, ...) -> (BLOCK_ROWS, BLOCK_GROUPS)
    unit(itemsize, *lengths) -> int                    what lengths are multiples of, for 16-byte loads
    Tile                                               how much of a tensor a program handles, by how many warps
    register(schema, implementation, fake) -> op       a torch.library op of the namespace `lowbit_kernels`

Nothing here waits for the device, so that every call can be captured in a CUDA graph.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import triton

from lowbit.errors import ArgumentError, DeviceError, DtypeError, ShapeError
from lowbit_kernels import _codec, _compiled
from lowbit_kernels._arguments import listed, require_integer, require_same_device, require_strided
from lowbit_kernels._cache_keys import settle
from lowbit_kernels._interpreter import lean

INTERPRETED = not isinstance(_codec.decode_e2m1, triton.runtime.JITFunction)
"""Whether triton was imported under TRITON_INTERPRET=1; later changes of the variable have no effect."""

INPUT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

INT32_MAX = 2**31 - 1

COMPILE_OPTIONS = {"enable_fp_fusion": False, "sanitize_overflow": False}
"""A contracted multiplication and addition is rounded once, not twice; and integers wrap here on purpose."""

_ELEMENTS_PER_PROGRAM = 1 << 18 if INTERPRETED else 1 << 13
_WHOLE_TILES = not INTERPRETED


class Tile(NamedTuple):
    """How a kernel is divided.

    Args:
      share: a program has this part of the usual elements, see `tile`.
      warps: of a program.
      rows: at least, where the kernel's results do not follow the rows.
    """

    share: int
    warps: int
    rows: int = 1


LIBRARY = torch.library.Library("lowbit_kernels", "DEF")


def require_device(name: str, tensor: torch.Tensor, device: torch.device | None = None) -> None:
    """Checks that a kernel can run where a tensor is.

    Args:
      name: of the argument, for the message.
      tensor: any.
      device: where the other arguments are, if there are others.

    Raises:
      DtypeError, ArgumentError: no tensor; one without strides.
      DeviceError: another device than `device`; no GPU tensor, unless it is a CPU tensor in the interpreter.
    """
    require_strided(name, tensor)
    where = tensor.device
    if device is not None and where != device:
        require_same_device(name, tensor, device)
    kind = where.type
    if kind == "cuda" or (kind == "cpu" and INTERPRETED):
        return
    raise DeviceError(
        f"{name}: got a tensor on {tensor.device}, want a GPU; "
        "for CPU tensors start the process with TRITON_INTERPRET=1 (it is read when triton is imported)"
    )


def require_input(name: str, x: torch.Tensor, device: torch.device | None = None) -> None:
    """Checks a tensor to quantise.

    Raises:
      DeviceError: as `require_device`.
      DtypeError: not float32, bfloat16 or float16.
      ShapeError: no dimension.
    """
    require_device(name, x, device)
    if x.dtype not in INPUT_DTYPES:
        raise DtypeError(f"{name}: got {x.dtype}, want {listed(INPUT_DTYPES)}")
    if x.dim() == 0:
        raise ShapeError(f"{name}: got a tensor without dimensions, want (..., K)")


def require_bytes(
    name: str, tensor: torch.Tensor, dtype: torch.dtype | None = None, device: torch.device | None = None
) -> torch.Tensor:
    """The bytes of a tensor of uint8 or of a 1-byte dtype.

    Returns:
      The same elements, seen as uint8; no copy.

    Raises:
      DeviceError: as `require_device`.
      DtypeError: neither uint8 nor `dtype`.
    """
    require_device(name, tensor, device)
    stored = tensor.dtype
    if stored == torch.uint8:
        return tensor
    if dtype is None or stored != dtype:
        raise DtypeError(f"{name}: got {stored}, want {listed((torch.uint8, dtype) if dtype else (torch.uint8,))}")
    return tensor.view(torch.uint8)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of a 1-byte dtype as uint8."""
    return tensor if tensor.dtype == torch.uint8 else tensor.view(torch.uint8)


def require_float(name: str, dtype: torch.dtype) -> None:
    """Checks the dtype of a decoded result.

    Raises:
      DtypeError: not float32, bfloat16 or float16.
    """
    if dtype not in INPUT_DTYPES:
        raise DtypeError(f"{name}: got {dtype}, want {listed(INPUT_DTYPES)}")


def require_random(
    name: str, bits: torch.Tensor | None, shape: Sequence[int], dtype: torch.dtype, device: torch.device, wanted_by: str
) -> torch.Tensor | None:
    """Checks given random bits.

    Args:
      name: of the argument.
      bits: the tensor, or None.
      shape, dtype, device: that it must have.
      wanted_by: the option that makes use of it, if that is chosen; else the empty string.

    Returns:
      The bits, contiguous; None if there are none.

    Raises:
      ArgumentError: bits that nothing would use.
      DeviceError, DtypeError, ShapeError: another device, dtype or shape.
    """
    if bits is None:
        return None
    if not wanted_by:
        raise ArgumentError(f"{name}: got a tensor, want None: no stochastic rule is chosen that would use it")
    require_device(name, bits, device)
    if bits.dtype != dtype:
        raise DtypeError(f"{name}: got {bits.dtype}, want {dtype}")
    if tuple(bits.shape) != tuple(shape):
        raise ShapeError(f"{name}: got shape {tuple(bits.shape)}, want {tuple(shape)}")
    return bits.contiguous()


def require_key(seed: int | None, needed_by: str) -> tuple[int, int]:
    """The Philox key of a seed: its low and high 32 bits, each as a signed integer.

    Args:
      seed: -2**63 .. 2**64 - 1, a negative one in two's complement; None where no bits are drawn.
      needed_by: what draws bits from it and could be given otherwise, for the message; empty where nothing does.

    Raises:
      DtypeError: no integer.
      ArgumentError: no seed where one is needed; a seed of more than 64 bits.
    """
    if seed is None:
        if needed_by:
            raise ArgumentError(f"seed: got None, want a 64-bit integer, or {needed_by} given as a tensor")
        return 0, 0
    seed = require_integer("seed", seed)
    if not -(2**63) <= seed < 2**64:
        raise ArgumentError(f"seed: got {seed}, want a 64-bit integer")
    return _signed(seed & 0xFFFFFFFF), _signed((seed >> 32) & 0xFFFFFFFF)


def _signed(word: int) -> int:
    return word - 2**32 if word >= 2**31 else word


def choose(name: str, value: str, known: Mapping[str, int], hint: str | None = None) -> int:
    """The number of a named rule.

    Raises:
      ArgumentError: no such name; lists all of them.
    """
    if isinstance(value, str) and value in known:
        return known[value]
    raise ArgumentError(f"{name}: got {value!r}, want {listed(known)}{f' ({hint})' if hint else ''}")


def pad_last_dimension(x: torch.Tensor, multiple: int) -> torch.Tensor:
    """Appends zeros to the last dimension, up to a multiple of a block.

    Args:
      x: (..., K) any dtype that has a zero. Of float4_e2m1fn_x2, which has two elements a byte, K counts the bytes.
      multiple: of the result's last dimension.

    Returns:
      (..., ceil(K / multiple) * multiple) of x's dtype; x itself if nothing is missing.

    Raises:
      ShapeError: no dimension.
      ArgumentError: a multiple below 1; a tensor without strides.
      DtypeError: no tensor; float8_e8m0fnu, which has no zero; a multiple that is no integer.
    """
    require_strided("x", x)
    multiple = require_integer("multiple", multiple)
    if x.dtype == torch.float8_e8m0fnu:
        raise DtypeError(f"x: got {x.dtype}, want a dtype that has a zero")
    if x.dim() == 0:
        raise ShapeError("x: got a tensor without dimensions, want (..., K)")
    if multiple < 1:
        raise ArgumentError(f"multiple: got {multiple}, want at least 1")
    missing = -x.shape[-1] % multiple
    if not missing:
        return x
    if x.is_floating_point() and x.element_size() == 1:  # torch fills some of these dtypes on no device
        return torch.nn.functional.pad(x.view(torch.uint8), (0, missing)).view(x.dtype)
    return torch.nn.functional.pad(x, (0, missing))


def rows_of(x: torch.Tensor) -> tuple[torch.Tensor, int, int]:
    """A 2-D view of (..., K), copied only where the leading dimensions have no common stride.

    Returns:
      The (rows, K) tensor, its row stride and its column stride. Where every row follows the one before, or there is
      only one, the row stride is K times the column stride.
    """
    if x.dim() == 2:
        x2d, (rows, columns) = x, x.shape
    else:
        rows, columns = math.prod(x.shape[:-1]), x.shape[-1]
        x2d = x.reshape(rows, columns)
    row_stride, column_stride = x2d.stride()
    if rows <= 1:
        row_stride = columns * column_stride
    return x2d, row_stride, column_stride


def tile(
    rows: int, groups: int, group_size: int, *, row_multiple: int = 1, group_multiple: int = 1, share: int = 1
) -> tuple[int, int]:
    """How many rows and groups one program handles; both powers of two.

    On a GPU a tile is whole even where the tensor is smaller, so that few are compiled: one for a single row, and one
    for each width of rows that are narrower than a tile. In the interpreter, which pays for each element, it is not.

    Args:
      rows, groups: of the tensor; rows = 1 where rows follow each other without a gap.
      group_size: elements of a group.
      row_multiple, group_multiple: least extents, powers of two.
      share: a program handles this part of the usual elements, a power of two; in the interpreter all of them.
    """
    budget = max(_ELEMENTS_PER_PROGRAM // (share if _WHOLE_TILES else 1) // group_size, 1)
    most_groups = max(budget // row_multiple, group_multiple)
    if _WHOLE_TILES and rows == 1:
        return row_multiple, most_groups
    block_groups = min(power_of_two(max(groups, group_multiple)), most_groups)
    block_rows = max(budget // block_groups, row_multiple)
    if not _WHOLE_TILES:
        block_rows = min(power_of_two(max(rows, row_multiple)), block_rows)
    return block_rows, block_groups


def power_of_two(length: int) -> int:
    """The least that is not below a length of 1 or more; triton's function costs as much as a launch."""
    return 1 << (length - 1).bit_length()


def unit(itemsize: int, *lengths: int) -> int:
    """How many loads of `itemsize` bytes 16 bytes are, if that divides all lengths, else 1.

    A kernel gets lengths in such units, and the unit as a constexpr: 16 bytes can be loaded at once where the lengths
    themselves, of which no kernel is made anew, say nothing.
    """
    most = 16 // itemsize
    return 1 if any(length % most for length in lengths) else most


def takes_ptx(tensor: torch.Tensor) -> bool:
    """Whether kernels on the tensor's device can hold PTX: an NVIDIA GPU, not another maker's, nor the interpreter."""
    return tensor.is_cuda and torch.version.hip is None


def launch(kernel: Any, grid: tuple[int, ...], tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
    """Starts a kernel on a tensor's device and that device's current stream; an empty grid starts nothing.

    Returns:
      What `_compiled.start` has kept, if it has.
    """
    if 0 in grid:
        return None
    if INTERPRETED:
        with _silence(), lean():
            kernel[grid](*args, **options)
        return None
    if kernel.hash is None:
        settle(kernel)
    options |= COMPILE_OPTIONS
    device = tensor.device.index
    start = _compiled.start if takes_ptx(tensor) else _start
    if tensor.is_cuda and device != torch.cuda.current_device():
        with torch.cuda.device(device):
            return start(kernel, grid, device, args, options)
    return start(kernel, grid, device, args, options)


def _start(kernel: Any, grid: tuple[int, ...], _: int | None, args: Sequence[Any], options: Mapping[str, Any]) -> None:
    kernel[grid](*args, **options)


def _silence() -> contextlib.AbstractContextManager[Any]:
    """In the interpreter overflow and NaN are results, nothing to warn of; it is what has imported NumPy."""
    return sys.modules["numpy"].errstate(all="ignore")


def register(schema: str, implementation: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Defines an op `lowbit_kernels::name` for CPU (in the interpreter) and GPU tensors.

    Args:
      schema: ``name(Tensor x, ...) -> ...``; arguments that are written come last.
      implementation: allocates and launches; its arguments are checked by the public function that calls the op.
      fake: returns empty outputs of the right shape and dtype.

    Returns:
      The op's default overload.
    """
    name = schema.partition("(")[0]
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    written = schema.count("!")

    def write(*args: Any) -> None:
        torch.autograd.graph.increment_version(args[-written:])  # autograd cannot see what a kernel writes
        implementation(*args)

    for key in ("CPU", "CUDA"):
        LIBRARY.impl(name, write if written else implementation, key)
    LIBRARY.impl(name, torch.library.fallthrough_kernel, "Autograd")  # no result has a gradient, float8 ones neither
    torch.library.register_fake(f"lowbit_kernels::{name}", fake, lib=LIBRARY)
    return getattr(torch.ops.lowbit_kernels, name).default
