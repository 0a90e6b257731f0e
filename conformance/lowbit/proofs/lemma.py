"""Lemmas as data, and what it means to prove one."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lowbit.errors import LowbitError
from lowbit.proofs.device import Term
from lowbit.proofs.sources import Kernels, kernels

TIMEOUT_MS = 120_000
"""After which a claim counts as undecided."""


@dataclass(frozen=True)
class Claim:
    """One statement for all values of its unknowns.

    Attributes:
      facts: what may be assumed.
      holds: what then holds.
      unknowns: name → term, shown of a counter-example.
      reals: arithmetic on real numbers rather than on bits; then an unknown may stand for too much, and only
        what `confirm` finds is a counter-example.
      confirm: looks for a counter-example to the lemma among plain numbers.
    """

    facts: Sequence[Term]
    holds: Term
    unknowns: Mapping[str, Term]
    reals: bool = False
    confirm: Callable[[], Mapping[str, int] | None] | None = None


@dataclass(frozen=True, kw_only=True)
class Lemma:
    """A statement that z3 decides.

    Attributes:
      name: stable; parts by meaning, separated by slashes.
      statement: in a sentence, for all inputs that it names.
      about: the functions of `lowbit_kernels`, or the rule.
      claims: the statement about given sources, in one part or several, each to hold.
      expected: False for a tempting variant that is wrong.
      assurance: ``proved`` is for all inputs by one formula each; ``exhaustive(N)`` by N of them.
      vector: of a wrong variant, the golden vector that catches it.
    """

    name: str
    statement: str
    about: str
    claims: Callable[[Kernels], Iterator[Claim]] = field(compare=False)
    expected: bool = True
    assurance: str = "proved"
    vector: str = ""


class Verdict(enum.Enum):
    PROVED = "PROVED"
    REFUTED = "REFUTED"
    UNDECIDED = "UNDECIDED"


@dataclass(frozen=True)
class Proof:
    """What z3 said.

    Attributes:
      counterexample: unknown → bits, of a refuted lemma.
      claims: how many parts were decided.
    """

    lemma: Lemma
    verdict: Verdict
    seconds: float
    claims: int
    counterexample: Mapping[str, int] | None = None

    @property
    def proved(self) -> bool:
        return self.verdict is Verdict.PROVED

    @property
    def as_expected(self) -> bool:
        return self.verdict is (Verdict.PROVED if self.lemma.expected else Verdict.REFUTED)

    def line(self) -> str:
        """For the terminal."""
        found = "".join(f"  {name}={bits:#x}" for name, bits in (self.counterexample or {}).items())
        surprise = "" if self.as_expected else "  NOT AS EXPECTED"
        return f"{self.verdict.value:9} {self.seconds:6.2f} s  {self.lemma.name}{found}{surprise}"


class NoSolver(LowbitError):
    """z3 is not installed."""


def prove(lemma: Lemma, code: Kernels | None = None) -> Proof:
    """Decides a lemma.

    Args:
      code: the sources that it is about; None takes the installed kernels.

    Raises:
      NoSolver: z3 is not installed.
      ArgumentError: the sources lack what the lemma is about, or use what the model does not know.
    """
    require_solver()
    code = kernels() if code is None else code
    start, decided = time.perf_counter(), 0
    for claim in lemma.claims(code):
        decided += 1
        verdict, found = _decide(claim)
        if verdict is not Verdict.PROVED:
            return Proof(lemma, verdict, time.perf_counter() - start, decided, found)
    if not decided:
        raise AssertionError(f"{lemma.name} claims nothing")
    return Proof(lemma, Verdict.PROVED, time.perf_counter() - start, decided)


def require_solver() -> None:
    try:
        import z3  # noqa: F401
    except ImportError as error:
        raise NoSolver("z3: not installed here, want `pip install lowbit[proofs]`") from error


def _decide(claim: Claim) -> tuple[Verdict, Mapping[str, int] | None]:
    import z3

    bits = z3.Then("simplify", "solve-eqs", "fpa2bv", "simplify", "bit-blast", "sat")
    answer = z3.unknown
    # The first way is the faster one to a proof, but has no counter-examples to show.
    for solver in (z3.Solver(),) if claim.reals else (bits.solver(), z3.Solver()):
        solver.set("timeout", TIMEOUT_MS)
        solver.add(*claim.facts, z3.Not(claim.holds))
        answer = solver.check()
        if answer != z3.unknown:
            break
    if answer == z3.unsat:
        return Verdict.PROVED, None
    if claim.reals:
        found = claim.confirm() if answer == z3.sat and claim.confirm else None
        return (Verdict.UNDECIDED if found is None else Verdict.REFUTED), found
    if answer == z3.unknown:
        return Verdict.UNDECIDED, None
    model = solver.model()
    values = {name: model.eval(term, model_completion=True) for name, term in claim.unknowns.items()}
    return Verdict.REFUTED, {name: value.as_long() for name, value in values.items()}
