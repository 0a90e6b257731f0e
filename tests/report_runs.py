"""Runs made by hand for tests of the report: what a page has to show, without a run of the suite."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from lowbit import schemes
from lowbit.compare import compare_encoded
from lowbit.diagnose import diagnose
from lowbit.records import Record, Run
from lowbit.references import bits
from lowbit.rules import Rounding

DEVICE = "cpu, Triton interpreter — GPU code generation not judged"
MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>\"'&"
MUTANT = "tests/mutants/ties_away.py:IMPLEMENTATION"

PICTURES = {
    "map": {
        "rows": 128,
        "columns": 200,
        "unit": "block",
        "row_step": 4,
        "column_step": 4,
        "counts": [[7 if 12 <= i < 16 and 40 <= j < 48 else 0 for j in range(50)] for i in range(32)],
    },
    "confusion": {"format": "e2m1", "pairs": [[0, 1, 200], [4, 5, 20], [15, 7, 4]], "left": 0},
    "scale_confusion": {
        "format": "e8m0",
        "pairs": [[i, i + 1, 2 if i == 129 else 1] for i in range(90, 130)],
        "left": 3,
    },
    "distance": {"pairs": [[-1, 20], [1, 200]], "beyond": 4},
    "scale_distance": {"pairs": [[1, 40]], "beyond": 0},
    "binade": {"pairs": [[e, 1] for e in range(-126, 40)], "zero": 2, "subnormal": 3, "inf": 0, "nan": 1},
}
"""All the pictures that there are: 32 cells in rows 48 to 63, blocks 160 to 191."""


def record(**fields: object) -> Record:
    """A record that passes, but for the fields given."""
    given: dict[str, object] = {
        "scheme": "mxfp4_floor",
        "check": "encode",
        "status": "pass",
        "implementation": "ties_away",
        "version": "1.2",
        "device": DEVICE,
        "level": "exhaustive",
        "assurance": "exhaustive(65536)",
        "compared": 65536,
        "node": "suite/test_encode.py::test_encode[ties_away-mxfp4_floor]",
        "repeat": f"pytest 'suite/test_encode.py::test_encode[ties_away-mxfp4_floor]' --impl {MUTANT}",
        **fields,
    }
    return Record(**given)  # type: ignore[arg-type]


def ties_away(scheme_name: str = "mxfp4_floor", **fields: object) -> Record:
    """A failing record: ties broken the other way, in every binade around 1, with its diagnosis."""
    scheme = schemes.get(scheme_name)
    x = np.zeros((4, 3 * scheme.block), np.float32)
    x[:, :8] = np.arange(-4, 4, dtype=np.float32) / 8 + np.float32(0.25)
    x[:, 9] = 3  # the ties beside it need it for their scale
    x[:, scheme.block] = [6, -3, 1.5, 0.75]
    x[:, scheme.block + 5] = [2.5, 0.625, -0.125, 0.0625]
    expected = bits.quantize(x, scheme)
    actual = bits.quantize(x, replace(scheme, rounding=Rounding.TIES_AWAY))
    comparison = compare_encoded(x, actual, expected, scheme)
    given = {"diagnosis": str(diagnose(x, actual, scheme, expected)), "scheme": scheme_name, "status": "mismatch"}
    return replace(Record.of(comparison, **{**record().as_dict(), **_told(comparison), **given}), **fields)


def _told(comparison: object) -> dict[str, object]:
    names = ("compared", "mismatched", "kinds", "samples", "message")
    return {name: getattr(comparison, name) for name in names}


def failing_run(folder: Path) -> Path:
    """A run with everything that a page shows: pictures, programs, waived and silent checks, tensors, markup."""
    made = Run.start(
        folder,
        {"device": DEVICE, "python": "3.11", "packages": {"torch": "2.13.0"}, MARKUP: MARKUP},
        f"pytest conformance/ --impl {MUTANT}",
        {"level": "full", "scheme": []},
        7,
        implementation="ties_away",
        version="1.2",
    )
    failing = ties_away()
    wrong = {"mismatched": 224, "kinds": {"tie": 220, "value": 4}, "pictures": PICTURES}
    waived = "the vendor rounds so until 2027-03-01, https://example.org/issues/12"
    figures = {"tensor": MARKUP, "shape": [2, 64], "blocks": 4, "saturated": 1, "sqnr_db": 20.125}
    records = [
        record(check="decode"),
        replace(failing, check="encode", **wrong),
        replace(failing, check="shapes"),
        replace(failing, check=MARKUP, diagnosis=MARKUP, message=MARKUP, node=MARKUP),
        record(scheme="nvfp4", check="encode"),
        replace(failing, check="scale", status="waived", message=waived, extra={"waiver": "waivers.toml, 1"}),
        record(scheme="*", check="encode 2^32", status="not_run", compared=0, message="needs a GPU"),
        record(check="swizzle", status="unsupported", compared=0, message="no such operation"),
        record(check="checkpoint", extra=figures),
    ]
    for one in records:
        made.add(one)
    made.finish(1)
    return made.folder
