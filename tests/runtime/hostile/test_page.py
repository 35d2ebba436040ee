"""docs/reference/limits.md says what is so."""

import re
from pathlib import Path

import msgspec

from unisono.model.limits import REASONS, Limits

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "limits.md").read_text(encoding="utf-8")


def test_the_page_has_every_reason_code_and_its_sentence() -> None:
    _, _, codes = PAGE.partition("## Reason codes")
    assert dict(re.findall(r"^\| `([a-z-]+)` \| (.+?) \|$", codes, re.M)) == REASONS


def test_the_page_has_every_setting_and_its_default() -> None:
    settings, _, _ = PAGE.partition("## Reason codes")
    shown = {name: float(value) for name, value in re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", settings, re.M)}
    assert shown == msgspec.structs.asdict(Limits())
