"""What a judge says."""

from msgspec import Struct


class Verdict(Struct, frozen=True):
    """`violations` counts in the judge's own unit (docs/reference/audit.md); `witness` is a minimal one, in words.

    Of a promise that holds it says which part of it the journal cannot show. One that the journal shows no case of is
    not `judged`, and does not hold.
    """

    judge: str
    holds: bool
    violations: int = 0
    witness: str = ""
    judged: bool = True

    @property
    def is_violated(self) -> bool:
        return self.judged and not self.holds


def passed(judge: str, but: str = "") -> Verdict:
    """`but` says in words what the journal cannot show."""
    return Verdict(judge, holds=True, witness=but)


def failed(judge: str, violations: int, witness: str) -> Verdict:
    return Verdict(judge, holds=False, violations=violations, witness=witness)


def nothing(judge: str, why: str) -> Verdict:
    return Verdict(judge, holds=False, witness=f"nothing to judge: {why}", judged=False)
