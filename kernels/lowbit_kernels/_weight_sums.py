"""What SqueezeLLM adds to its tables' values, before it is added: checks of shapes, and on the device of indices.

    require_sparse(sparse, rows, columns, device)          (crow_indices, col_indices, values), or three times None
    require_full_rows(full_rows, rows, columns, device)    (indices, values), or twice None
    CHECK(qweight, crow, col, indices, rows)               the op that looks at indices: (flags, owner)
    require_sound(flags, ...)                              raises for the first flag that is set

Only the last one waits for the device.
"""

from __future__ import annotations

from typing import Any

import torch

from lowbit.errors import ArgumentError, DtypeError, ShapeError
from lowbit_kernels import _launch, _weight_tiles
from lowbit_kernels import _weight_arguments as checks
from lowbit_kernels import _weight_squeezellm as kernels

INDICES = (torch.int32, torch.int64)

Sparse = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""(crow_indices, col_indices, values)."""

FullRows = tuple[torch.Tensor, torch.Tensor]
"""(indices, values)."""


def require_sparse(sparse: Sparse | None, rows: int, columns: int, device: torch.device) -> tuple[Any, Any, Any]:
    """Checks the shapes and dtypes of a CSR matrix (columns, rows).

    Raises:
      DtypeError, DeviceError, ShapeError, ArgumentError: no tuple of three tensors that belong together.
    """
    if sparse is None:
        return None, None, None
    crow, col, values = _parts("sparse", sparse, ("crow_indices", "col_indices", "values"))
    checks.require_tensor("sparse.crow_indices", crow, INDICES, device)
    checks.require_shape("sparse.crow_indices", crow, (columns + 1,), "for {columns} output channels", columns=columns)
    checks.require_tensor("sparse.col_indices", col, INDICES, device)
    checks.require_tensor("sparse.values", values, (torch.float32,), device)
    if col.dim() != 1:
        raise ShapeError(f"sparse.col_indices: got shape {tuple(col.shape)}, want one dimension")
    checks.require_shape("sparse.values", values, col.shape, "one for each of col_indices")
    return crow, col, values


def require_full_rows(full: FullRows | None, rows: int, columns: int, device: torch.device) -> tuple[Any, Any]:
    """Checks the shapes and dtypes of what is added to whole channels.

    Raises:
      DtypeError, DeviceError, ShapeError, ArgumentError: no tuple of two tensors that belong together.
    """
    if full is None:
        return None, None
    indices, values = _parts("full_rows", full, ("indices", "values"))
    checks.require_tensor("full_rows.indices", indices, INDICES, device)
    checks.require_tensor("full_rows.values", values, (torch.float32,), device)
    if indices.dim() != 1:
        raise ShapeError(f"full_rows.indices: got shape {tuple(indices.shape)}, want one dimension")
    checks.require_lengths("full_rows.indices", 0, indices.shape[0])
    checks.require_shape("full_rows.values", values, (rows, indices.shape[0]), "a row of weights for each of indices")
    return indices, values


def _parts(name: str, value: Any, parts: tuple[str, ...]) -> Any:
    """The entries of a tuple of tensors."""
    wanted = f"want ({', '.join(parts)})"
    if not isinstance(value, (tuple, list)):
        raise DtypeError(f"{name}: got {type(value).__name__}, {wanted}")
    if len(value) != len(parts):
        raise ArgumentError(f"{name}: got {len(value)} entries, {wanted}")
    return value


def require_sound(
    flags: torch.Tensor,
    crow: torch.Tensor | None,
    col: torch.Tensor | None,
    indices: torch.Tensor | None,
    rows: int,
    columns: int,
) -> None:
    """Reads the flags of CHECK, which waits for the device.

    Raises:
      ArgumentError: one is set; says where the fault is.
    """
    found = flags.tolist()
    if not any(found):
        return
    if crow is not None and col is not None:
        if found[0]:
            raise ArgumentError(
                f"sparse.crow_indices: got {crow.tolist()[:8]} …, want {columns + 1} offsets from 0 to {col.shape[0]} "
                "that never fall"
            )
        if found[1]:
            wrong = int(((col < 0) | (col >= rows)).nonzero()[0].item())
            raise ArgumentError(
                f"sparse.col_indices: got {col[wrong].item()} at position {wrong}, want 0..{rows - 1}: {rows} rows"
            )
        if found[2]:
            raise ArgumentError("sparse.col_indices: got a place of the matrix twice, want each at most once")
    assert indices is not None
    if found[3]:
        wrong = int(((indices < 0) | (indices >= columns)).nonzero()[0].item())
        raise ArgumentError(
            f"full_rows.indices: got {indices[wrong].item()} at position {wrong}, want 0..{columns - 1}: "
            f"{columns} channels"
        )
    raise ArgumentError("full_rows.indices: got a channel twice, want each at most once")


def _check(
    qweight: torch.Tensor, crow: torch.Tensor | None, col: torch.Tensor | None, indices: torch.Tensor | None, rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launches the checks of indices: flags, and which full row each channel has, -1 for none."""
    columns = qweight.shape[1]
    flags = torch.zeros(kernels.FLAG_ROOM, dtype=torch.int32, device=qweight.device)
    owner = torch.full((columns if indices is not None else 0,), -1, dtype=torch.int32, device=qweight.device)
    if crow is not None and col is not None and columns == 0:
        flags[0] = ((crow != 0) | (col.shape[0] != 0)).to(torch.int32)[0]
    elif crow is not None and col is not None:
        seen = torch.zeros(-(-columns * rows // 32), dtype=torch.int32, device=qweight.device)
        block_rows, block_entries = _weight_tiles.SPARSE
        _launch.launch(
            kernels.check_sparse_kernel,
            (-(-columns // block_rows),),
            flags,
            crow.contiguous(),
            col.contiguous(),
            seen,
            flags,
            columns,
            rows,
            col.shape[0],
            BLOCK_R=block_rows,
            BLOCK_E=block_entries,
        )
    if indices is not None:
        block = 1024
        arguments = (indices.contiguous(), owner, flags, columns, indices.shape[0])
        _launch.launch(kernels.check_full_rows_kernel, (-(-indices.shape[0] // block),), flags, *arguments, BLOCK=block)
    return flags, owner


def _check_fake(
    qweight: torch.Tensor, crow: torch.Tensor | None, col: torch.Tensor | None, indices: torch.Tensor | None, rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    owner = qweight.shape[1] if indices is not None else 0
    flags = torch.empty(kernels.FLAG_ROOM, dtype=torch.int32, device=qweight.device)
    return flags, torch.empty(owner, dtype=torch.int32, device=qweight.device)


CHECK = _launch.register(
    "check_squeezellm(Tensor qweight, Tensor? crow, Tensor? col, Tensor? indices, SymInt rows) -> (Tensor, Tensor)",
    _check,
    _check_fake,
)
