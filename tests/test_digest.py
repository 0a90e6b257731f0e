"""What the digest of a wrong result stands for, and that it never changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from lowbit.compare import arrays, compare_bytes, compare_codes, failure, merge
from lowbit.compare.comparison import Comparison
from lowbit.formats import E2M1
from lowbit.records import Record


def wrong(limit: int = 20, place: int = 70, got: int = 3, want: int = 1) -> Comparison:
    """Two ties and a value among 4,096 codes."""
    x = np.zeros(4096, np.float32)
    expected = np.zeros(4096, np.uint8)
    actual = expected.copy()
    for i, (value, a, e) in {7: (0.25, 1, 0), place: (0.5, got, want), 3000: (0.25, 1, 0)}.items():
        x[i], actual[i], expected[i] = value, a, e
    return compare_codes(x, actual, expected, E2M1, max_samples=limit)


def test_the_digest_of_a_wrong_result_never_changes() -> None:
    """Files of waivers hold it: another definition would make each of them fail."""
    assert wrong().digests == {"tie": 0x683FECCD9D0C4EF4, "value": 0xDAFA5986F68955A0}
    assert Record.of(wrong(), scheme="s", check="c").digest == "3:c32ed77b87e212ee"


def test_the_digest_depends_on_nothing_but_the_wrong_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on how many samples are kept, on the size of the pieces, or on the library."""
    right = wrong().digests
    assert wrong(limit=0).digests == right
    rng = np.random.default_rng(3)
    expected = rng.integers(0, 16, 5000, np.uint8)
    actual = np.where(rng.random(5000) < 0.5, expected, 15 - expected).astype(np.uint8)
    whole = compare_bytes(actual, expected, tensor="t")
    on_torch = compare_bytes(torch.from_numpy(actual), torch.from_numpy(expected), tensor="t", max_samples=3)
    monkeypatch.setattr(arrays, "CHUNK", 700)
    monkeypatch.setattr(arrays, "PIECE", 11)
    in_pieces = compare_bytes(actual, expected, tensor="t")
    assert whole.mismatched == in_pieces.mismatched > 2000
    assert whole.digests == in_pieces.digests == on_torch.digests


@pytest.mark.parametrize("other", [{"place": 71}, {"got": 4}, {"want": 0}])
def test_the_digest_depends_on_every_wrong_code(other: dict[str, int]) -> None:
    """Another place, another code found, another code wanted, with the same counts in the first two."""
    assert wrong(**other).digests != wrong().digests
    assert wrong(**other).digests.get("tie") == wrong().digests["tie"] or "want" in other


def test_the_digest_of_a_check_tells_its_comparisons_apart() -> None:
    """The same wrong codes in another of its tensors, or in another order, are another wrong result."""
    first, fine = wrong(), Comparison("codes", 9)
    renamed = replace(first, tensor="bfloat16: codes")
    found = [merge(parts).digests for parts in ([first, fine], [fine, first], [renamed, fine], [first, first])]
    assert len({tuple(digests.items()) for digests in found}) == 4
    assert merge([first, fine]).kinds == merge([fine, first]).kinds


def test_a_wrong_shape_has_a_digest() -> None:
    of = [failure("shape", tensor="t", message=f"got {n}").digests for n in (3, 4, 4)]
    assert of[0] != of[1] == of[2]
