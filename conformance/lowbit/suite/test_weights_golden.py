"""Golden vectors of stored weights: words and bits that stand in files, on which independent witnesses agreed."""

from __future__ import annotations

from collections.abc import Iterator

from lowbit import vectors, weights
from lowbit.compare import compare_values
from lowbit.formats import FORMATS
from lowbit.suite.answers import CASES_NAMED
from lowbit.suite.checks import check
from lowbit.suite.weight_judge import TORCH, WeightJudge
from lowbit.suite.weight_levels import quick_for_representatives
from lowbit.vectors import Group, WeightBatch


def groups_of(judge: WeightJudge) -> Iterator[Group]:
    """The groups whose answers hold under the scheme."""
    for group in vectors.groups(judge.settings.vectors):
        if group.form == "weights" and judge.scheme.name in group.schemes:
            yield group


@check(
    "golden weights",
    level=quick_for_representatives,
    where=lambda s: s.name in weights.names(),
    judge=WeightJudge,
)
def test_weights(judge: WeightJudge) -> None:
    """Every stored weight of the files, in every format that they state; those to refuse are refused."""
    for group in groups_of(judge):
        for batch in vectors.weight_batches(group, judge.scheme):
            with judge.part(f"{group.file}, {group.name}"):
                if batch.expected:
                    judge_batch(judge, batch)
                else:
                    judge.refuses_weight(judge.stored(batch.tensors), batch.names[0])
    judge.assurance = f"golden({judge.compared})"


def judge_batch(judge: WeightJudge, batch: WeightBatch) -> None:
    """One weight in all its formats; a mismatch names the cases. The references are to agree with the file first."""
    tensors = judge.stored(batch.tensors)
    for name, patterns in batch.expected.items():
        dtype = TORCH[FORMATS[name]]
        width = patterns.dtype.itemsize
        expected = judge.tensor(patterns.view(f"i{width}")).view(dtype)
        second = judge.expected(tensors, dtype)
        judge.agree(compare_values(second, expected), "tensors", "golden file", "dequantize_weight")
        judge.dequantize(tensors, dtype, expected=expected)
        note_cases(judge, batch)


def note_cases(judge: WeightJudge, batch: WeightBatch) -> None:
    """Names the cases in which the last comparison found mismatches."""
    samples = judge.comparisons[-1].samples
    named = list(dict.fromkeys(batch.case_at(sample.coordinates) for sample in samples if sample.coordinates))
    if named:
        cut = " …" if len(named) > CASES_NAMED else ""
        judge.notes.append(f"cases of {', '.join(judge.parts)}: {', '.join(named[:CASES_NAMED])}{cut}")
