"""What a judge says."""

from msgspec import Struct


class Verdict(Struct, frozen=True):
    """`violations` counts in the judge's own unit (docs/reference/audit.md); `witness` is a minimal one, in words.

    A promise that the journal shows no case of is not `judged`, and does not hold: `witness` says what is not there.
    """

    judge: str
    holds: bool
    violations: int = 0
    witness: str = ""
    judged: bool = True

    @property
    def is_violated(self) -> bool:
        return self.judged and not self.holds


def passed(judge: str) -> Verdict:
    return Verdict(judge, holds=True)


def failed(judge: str, violations: int, witness: str) -> Verdict:
    return Verdict(judge, holds=False, violations=violations, witness=witness)


def nothing(judge: str, why: str) -> Verdict:
    return Verdict(judge, holds=False, witness=f"nothing to judge: {why}", judged=False)
