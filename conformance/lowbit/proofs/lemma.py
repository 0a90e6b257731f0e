"""Lemmas as data, and what it means to prove one."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lowbit.errors import ArgumentError, LowbitError
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
      numbers: about integers and real numbers rather than bits.
      confirm: of a claim that says more than its lemma; looks for a counter-example to the lemma itself.
    """

    facts: Sequence[Term]
    holds: Term
    unknowns: Mapping[str, Term]
    numbers: bool = False
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
      vector: of a wrong variant, the group of golden vectors that catches it.
    """

    name: str
    statement: str
    about: str
    claims: Callable[[Kernels], Iterator[Claim]] = field(compare=False)
    expected: bool = True
    vector: str = ""

    def described(self) -> str:
        """For the terminal: the name, what it states and of what."""
        wrong = "" if self.expected else f"  [wrong, as {self.vector} shows]"
        return f"{self.name}{wrong}\n    {self.statement}\n    about {self.about}"


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


def prove(lemma: Lemma, code: Kernels | None = None, *, check_facts: bool = True) -> Proof:
    """Decides a lemma.

    Args:
      code: the sources that it is about; None takes the installed kernels.
      check_facts: a lemma whose assumptions contradict one another is undecided, though everything follows from them.

    Raises:
      LowbitError: z3 is not installed.
      ArgumentError: the sources lack what the lemma is about, or use what the model does not know.
    """
    require_solver()
    code = kernels() if code is None else code
    start, decided = time.perf_counter(), 0
    possible: dict[int, Term] = {}
    for claim in _claims(lemma, code):
        decided += 1
        verdict, found = _decide(claim)
        if verdict is Verdict.PROVED and check_facts and not _is_possible(claim, possible):
            verdict = Verdict.UNDECIDED
        if verdict is not Verdict.PROVED:
            return Proof(lemma, verdict, time.perf_counter() - start, decided, found)
    if not decided:
        raise AssertionError(f"{lemma.name} claims nothing")
    return Proof(lemma, Verdict.PROVED, time.perf_counter() - start, decided)


def _claims(lemma: Lemma, code: Kernels) -> Iterator[Claim]:
    """The lemma's claims; building them runs the sources."""
    try:
        yield from lemma.claims(code)
    except (AttributeError, KeyError, NameError, TypeError) as error:
        raise ArgumentError(
            f"{lemma.name}: the sources of {lemma.about} cannot be run on the model "
            f"({type(error).__name__}: {error}), want the functions that the lemma is about, of operations that "
            "lowbit.proofs models"
        ) from error


def total(proofs: Sequence[Proof]) -> str:
    """One line about many proofs."""
    proved = sum(proof.proved for proof in proofs)
    refuted = sum(proof.verdict is Verdict.REFUTED for proof in proofs)
    surprises = sum(not proof.as_expected for proof in proofs)
    seconds = sum(proof.seconds for proof in proofs)
    ending = f"{surprises} not as expected" if surprises else "all as expected"
    return f"{len(proofs)} lemmas: {proved} proved, {refuted} refuted, {ending}, {seconds:.0f} s"


def require_solver() -> None:
    try:
        import z3  # noqa: F401
    except ImportError as error:
        raise LowbitError("z3: not installed here, want `pip install 'lowbit[proofs]'`") from error


def _solver(claim: Claim) -> Any:
    import z3

    if claim.numbers:
        solver = z3.Solver()
    else:  # to one formula of bits, for a solver that knows nothing else; without functions, or it shows no model
        solver = z3.Then("simplify", "solve-eqs", "fpa2bv", "simplify", "ackermannize_bv", "bit-blast", "sat").solver()
    solver.set("timeout", TIMEOUT_MS)
    return solver


def _is_possible(claim: Claim, known: dict[int, Term]) -> bool:
    """Whether its facts can hold together: from a contradiction everything would follow.

    Args:
      known: those that can, by z3's identity; it is added to.
    """
    import z3

    together = z3.And(*claim.facts)
    if together.get_id() not in known:
        solver = _solver(claim)
        solver.add(together)
        if solver.check() != z3.sat:
            return False
        known[together.get_id()] = together
    return True


def _decide(claim: Claim) -> tuple[Verdict, Mapping[str, int] | None]:
    import z3

    solver = _solver(claim)
    solver.add(*claim.facts, z3.Not(claim.holds))
    answer = solver.check()
    if answer == z3.unsat:
        return Verdict.PROVED, None
    if answer == z3.unknown:
        return Verdict.UNDECIDED, None
    if claim.confirm is not None:
        found = claim.confirm()
        return (Verdict.UNDECIDED if found is None else Verdict.REFUTED), found
    model = solver.model()
    values = {name: model.eval(term, model_completion=True) for name, term in claim.unknowns.items()}
    return Verdict.REFUTED, {name: value.as_long() for name, value in values.items()}
