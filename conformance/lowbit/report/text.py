"""Numbers, names and code bits as reports show them, the same in the terminal and in HTML."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lowbit.rules import Rounding

if TYPE_CHECKING:
    from lowbit.records import Record

LIMIT = 1000
"""Characters shown of one text; names and messages are other people's and may be of any length."""

_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufffe\uffff]"
)


def clean(value: Any, limit: int = LIMIT) -> str:
    """Any value as text that can be written anywhere: control and direction characters become visible escapes."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else str(value)
    if len(text) > limit:
        text = f"{text[:limit]}… ({len(text):,} characters)"
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def line(value: Any, limit: int = LIMIT) -> str:
    """The same on one line."""
    return " ".join(clean(value, limit).split())


def count(value: Any) -> str:
    """An exact count: 1,234,567."""
    return f"{value:,}" if isinstance(value, int) else clean(value)


def about(value: int) -> str:
    """A count in at most four characters, rounded down: 65k, 4.2G."""
    if value < 1000:
        return str(value)
    for unit in "kMGTP":
        value, rest = divmod(value, 1000)
        if value < 10:
            return f"{value}.{rest // 100}{unit}"
        if value < 1000:
            return f"{value}{unit}"
    return "many"


def number(value: Any) -> str:
    """A decoded value: 0.25, 6, -0, nan."""
    if isinstance(value, float) and math.isfinite(value):
        return repr(value).removesuffix(".0")
    return clean(value)


def of_kinds(kinds: Mapping[str, int]) -> str:
    """``tie 4,096, value 3``."""
    return ", ".join(f"{clean(kind)} {count(n)}" for kind, n in kinds.items())


def reason(sample: Mapping[str, Any]) -> str:
    """The kind, and for a tie the way in which the scheme breaks it: ``tie → even``."""
    kind, rule = clean(sample.get("kind")), clean(sample.get("rule"))
    if not rule:
        return kind
    known = {r.value for r in Rounding}
    return f"{kind} → {rule.removeprefix('ties_').removeprefix('to_').replace('_', ' ') if rule in known else rule}"


_TRIED = re.compile(r"; tried on [\d,]+ of [\d,]+(?=$| \()")
_EXPLAINED = re.compile(r"(?:all ([\d,]+) mismatches|the one mismatch|([\d,]+) of ([\d,]+) mismatches) vanish")


def diagnosis(record: Record) -> str:
    """The diagnosis; where it was made of a part of the record's mismatches, with how many were looked into."""
    said = record.diagnosis or ""
    found = _EXPLAINED.match(said)
    if found is None:
        return said
    tried = found[1] or found[3] or "1"
    if not 0 < int(f"0{tried.replace(',', '')[:20]}") < record.mismatched:
        return said
    return f"looked into {tried} of {record.mismatched:,} mismatches: {_TRIED.sub('', said)}"


def anchor(implementation: str, scheme: str, check: str) -> str:
    """The id of a check's section in index.html; different names never share one."""
    key = "\0".join((implementation, scheme, check))
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    slug = re.sub(r"[^A-Za-z0-9_]+", "-", f"{scheme}-{check}")[:60].strip("-")
    return f"{slug}-{digest}"
