"""What only a GPU can show of the matmul kernels: tensor cores, graphs, streams, memory, sizes."""

from __future__ import annotations

import pytest
import torch

from lowbit.references import matmul
from lowbit.schemes import Encoded, Scheme
from lowbit_kernels import _matmul_hopper, _matmul_launch
from lowbit_kernels._matmul_hopper import Tiles
from lowbit_kernels._matmul_launch import Configuration, Few
from lowbit_kernels.swizzle import swizzled_size

from .matmul_checks import (
    DTYPES,
    FAMILIES,
    MXFP4,
    NVFP4,
    Operands,
    Stored,
    assert_same,
    bits,
    every_code_and_byte,
    expected,
    launched,
    multiply,
    on,
    stored,
    summable,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

ROWS = (1, 3, 16, 17, 33, 64, 65, 127, 128, 129, 300)
COLUMNS = (8, 24, 136, 1000)


def first(operands: Operands, rows: int, columns: int) -> Operands:
    """The first rows of both: parts of exactly summable operands are exactly summable."""
    parts = zip(operands, (rows, columns), strict=True)
    return Operands(*(side._replace(codes=side.codes[:n], scales=side.scales[:n]) for side, n in parts))


def right_on_gpu(operands: Operands, scheme: Scheme, dtype: torch.dtype) -> torch.Tensor:
    """What the float64 reference gives, calculated on the GPU."""
    a, b = (Encoded(on(side.codes), on(side.scales)) for side in operands)
    sums = matmul.sums(a, b, scheme)
    assert sums.exact.all()
    return matmul.finish(sums.value, None, DTYPES[dtype])


def anything(rows: int, columns: int, k: int, scheme: Scheme, seed: int = 0) -> Stored:
    """Random bytes, scales around 1; sums are rounded."""
    generator = torch.Generator("cuda").manual_seed(seed)
    block, low = scheme.block, 120 if scheme is MXFP4 else 0x20

    def random(least: int, end: int, *shape: int) -> torch.Tensor:
        return torch.randint(least, end, shape, dtype=torch.uint8, device="cuda", generator=generator)

    parts = []
    for count in (rows, columns):
        parts += [random(0, 256, count, k // 2), random(low, low + 16, swizzled_size(count, k // block))]
    return Stored(*parts)


def equal(actual: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.equal(actual.view(torch.uint8), right.view(torch.uint8))


@pytest.mark.parametrize("terms", [32, 1056, 4128])
@FAMILIES
def test_exact_over_a_grid(scheme: Scheme, terms: int) -> None:
    """Every M with every N, K 16 times an odd number or nearly, all dtypes; cut out of one pair of operands."""
    blocks = terms // scheme.block + (scheme is NVFP4)
    whole = summable(scheme, max(ROWS), max(COLUMNS), blocks)
    right = {dtype: right_on_gpu(whole, scheme, dtype) for dtype in DTYPES}
    for rows in ROWS:
        for columns in COLUMNS:
            given = stored(first(whole, rows, columns), scheme, 0xFF)
            for dtype, all_of_it in right.items():
                actual = multiply(scheme, given, dtype)
                assert equal(actual, all_of_it[:rows, :columns].contiguous()), (rows, columns, dtype)


@pytest.mark.parametrize("shape", [(4096, 520, 4096), (512, 8192, 1024), (16, 8192, 8192)], ids=str)
@FAMILIES
def test_exact_on_large_operands(scheme: Scheme, shape: tuple[int, int, int]) -> None:
    rows, columns, terms = shape
    operands = summable(scheme, rows, columns, terms // scheme.block)
    assert equal(multiply(scheme, stored(operands, scheme, 0xFF)), right_on_gpu(operands, scheme, torch.float32))


CONFIGURATIONS = [
    Configuration(16, 64, 128, swap=True),
    Configuration(32, 64, 256, split_k=3, swap=True, stages=2),
    Configuration(64, 64, 128, split_k=5, warps=4),
    Configuration(128, 64, 128, group_m=1, warps=4, stages=2),
    Configuration(64, 128, 128, warps=8, stages=4),
    Configuration(128, 128, 128, group_m=3, warps=8),
    Few(8, 32, 8),
    Few(16, 64, 2, split_k=3),
    Few(32, 128, 4),
]


@pytest.mark.parametrize("chosen", CONFIGURATIONS, ids=lambda c: "-".join(map(str, (type(c).__name__, *c))))
@FAMILIES
def test_the_configuration_does_not_count(scheme: Scheme, chosen: Configuration | Few) -> None:
    """With whole tiles and without, on operands whose sum no order changes."""
    for rows, columns, terms in ((256, 512, 1920), (200, 264, 1056)):
        if isinstance(chosen, Few):
            rows = min(rows, chosen.block_m) - rows % 16 // 2
        operands = summable(scheme, rows, columns, terms // scheme.block)
        out = torch.full((rows, columns), 7.0, device="cuda")
        _matmul_launch.multiply(launched(scheme, stored(operands, scheme, 0xFF)), out, chosen)
        assert_same(bits(out), expected(operands, scheme))


HOPPER = pytest.mark.skipif(not _matmul_hopper.available(), reason="needs compute capability 9 and Gluon")


@HOPPER
@pytest.mark.parametrize("tiles", [Tiles(), Tiles(block_k=64, stages=3)], ids=["as usual", "short steps"])
@pytest.mark.parametrize("shape", [(128, 256, 512), (300, 264, 1056), (1, 8, 32), (257, 129, 4128)], ids=str)
@FAMILIES
def test_hoppers_kernel(scheme: Scheme, shape: tuple[int, int, int], tiles: Tiles) -> None:
    """Whole tiles and parts of them, K a multiple of 32 or not, rows that are not 16 bytes apart; every dtype."""
    rows, columns, terms = shape
    operands = summable(scheme, rows, columns, terms // scheme.block + (scheme is NVFP4 and terms > 1000))
    given = stored(operands, scheme, 0xFF)
    gaps = torch.zeros(rows, given.a.shape[1] + 4, dtype=torch.uint8, device="cuda")[:, : given.a.shape[1]]
    gaps.copy_(given.a)
    factors = (0.7, 1.3) if scheme is NVFP4 else (None, None)
    for dtype in DTYPES:
        right = expected(operands, scheme, dtype, factors)
        for a in (given.a, gaps):
            out = torch.full((rows, columns), 7.0, dtype=dtype, device="cuda")
            _matmul_hopper.multiply(launched(scheme, given._replace(a=a), factors), out, tiles)
            assert_same(bits(out), right, DTYPES[dtype])


@HOPPER
@FAMILIES
def test_hoppers_kernel_with_every_code_and_scale_byte(scheme: Scheme) -> None:
    """On either side; what the others make of them is tried wherever kernels run."""
    (every, whole), right = every_code_and_byte(scheme)
    for operands, wanted in ((Operands(every, whole), right), (Operands(whole, every), right.T)):
        out = torch.full(wanted.shape, 7.0, device="cuda")
        _matmul_hopper.multiply(launched(scheme, stored(operands, scheme, 0xFF)), out)
        assert_same(bits(out), wanted)


@pytest.mark.parametrize("rows", [1, 16, 48, 300])
@FAMILIES
def test_twice_the_same_bits(scheme: Scheme, rows: int) -> None:
    """Also where sums are rounded, and in parts of k: no atomics."""
    given = anything(rows, 1024, 8192, scheme)
    results = [multiply(scheme, given) for _ in range(5)]
    assert results[0].isfinite().all()
    assert all(equal(result, results[0]) for result in results)


@pytest.mark.parametrize("rows", [16, 130])
@FAMILIES
def test_a_captured_graph_replays_on_new_data(scheme: Scheme, rows: int) -> None:
    """The factors are read on the device, too."""
    given, ra, rb = anything(rows, 256, 4096, scheme), torch.ones(1, device="cuda"), torch.ones(1, device="cuda")

    def call() -> torch.Tensor:
        if scheme is MXFP4:
            return torch.ops.lowbit_kernels.mxfp4_mm(*given, torch.bfloat16)
        return torch.ops.lowbit_kernels.nvfp4_mm(*given, ra, rb, torch.bfloat16)

    call()  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    for seed in (1, 2):
        for tensor, new in zip(given, anything(rows, 256, 4096, scheme, seed), strict=True):
            tensor.copy_(new)
        ra.fill_(0.7 * seed)
        graph.replay()
        assert equal(result, call())


@pytest.mark.parametrize("rows", [16, 130])
@FAMILIES
def test_nothing_waits_for_the_device(scheme: Scheme, rows: int) -> None:
    given, factors = anything(rows, 256, 4096, scheme), (torch.ones(1, device="cuda"), None)

    def call() -> None:
        if scheme is MXFP4:
            torch.ops.lowbit_kernels.mxfp4_mm(*given, torch.bfloat16)
        else:
            torch.ops.lowbit_kernels.nvfp4_mm(*given, *factors, torch.bfloat16)
            multiply(scheme, given)  # the checks of the public function, too

    call()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@FAMILIES
def test_work_goes_to_the_current_stream(scheme: Scheme) -> None:
    """The operand is ready late on a side stream only; a kernel on another stream would read what was there before."""
    given, late = anything(16, 256, 4096, scheme), anything(16, 256, 4096, scheme, 1)
    right = multiply(scheme, late)
    multiply(scheme, given)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        for tensor, new in zip(given, late, strict=True):
            tensor.copy_(new)
        result = multiply(scheme, given)
    stream.synchronize()
    assert equal(result, right)


@FAMILIES
def test_inductor_gives_the_same_bits(scheme: Scheme) -> None:
    given = anything(48, 256, 4096, scheme)
    compiled = torch.compile(lambda *tensors: multiply(scheme, Stored(*tensors), torch.bfloat16), fullgraph=True)
    assert equal(compiled(*given), multiply(scheme, given, torch.bfloat16))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@FAMILIES
def test_another_than_the_current_device(scheme: Scheme) -> None:
    given = anything(16, 256, 4096, scheme)
    assert torch.cuda.current_device() == 0
    result = multiply(scheme, Stored(*(tensor.to("cuda:1") for tensor in given)))
    assert result.device == torch.device("cuda:1")
    assert equal(result.to("cuda:0"), multiply(scheme, given))


# Sizes


@pytest.mark.parametrize(("rows", "columns"), [(2**16 + 1, 2**15 + 8), (5, 2**29 + 40)])
def test_more_than_31_bits_of_results(rows: int, columns: int) -> None:
    """The last rows and columns of a huge result are those that they are alone."""
    given = anything(rows, columns, 16, NVFP4)
    assert rows * columns > 2**31
    ends = [128 * ((count - 1) // 128) for count in (rows, columns)]  # whole tiles of the scales
    tail = Stored(given.a[ends[0] :], given.a_scales[ends[0] * 4 :], given.b[ends[1] :], given.b_scales[ends[1] * 4 :])
    result = multiply(NVFP4, given, torch.bfloat16)
    assert equal(result[ends[0] :, ends[1] :].contiguous(), multiply(NVFP4, tail, torch.bfloat16))


@pytest.mark.parametrize("rows", [1, 16, 64, 2048])
@FAMILIES
def test_no_decoded_operand_in_memory(scheme: Scheme, rows: int) -> None:
    """What a call allocates is the result and, for few rows, sums of parts of k: far below one operand in bfloat16."""
    given = anything(rows, 8192, 8192, scheme)
    multiply(scheme, given, torch.bfloat16)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = multiply(scheme, given, torch.bfloat16)
    torch.cuda.synchronize()
    beyond = torch.cuda.max_memory_allocated() - before - result.nbytes
    parts = _matmul_launch.configuration(rows, 8192, 8192, scheme is MXFP4).split_k
    workspace = parts * rows * 8192 * 4 if parts > 1 else 0
    assert beyond <= workspace + 4096
    assert beyond < 8192 * 8192 * 2 // 3
