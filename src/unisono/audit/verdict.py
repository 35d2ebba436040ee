"""What a judge says."""

from msgspec import Struct


class Verdict(Struct, frozen=True):
    """`violations` counts in the judge's own unit (docs/reference/audit.md); `witness` is a minimal one, in words."""

    judge: str
    holds: bool
    violations: int = 0
    witness: str = ""


def passed(judge: str) -> Verdict:
    return Verdict(judge, holds=True)


def failed(judge: str, violations: int, witness: str) -> Verdict:
    return Verdict(judge, holds=False, violations=violations, witness=witness)
