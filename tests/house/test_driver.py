"""docs/reference/driver.md is true: it lists every timer in asyncio code outside the driver, and no others."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUNTIME = ROOT / "src" / "unisono" / "runtime"
PAGE = (ROOT / "docs" / "reference" / "driver.md").read_text(encoding="utf-8")
TIMER = re.compile(r"call_later\(|call_at\(|\.later\(|asyncio\.sleep\((?!0\))")


def modules_with_timers() -> list[str]:
    rooms = [path for path in RUNTIME.rglob("*.py") if path.relative_to(RUNTIME).parts[0] not in ("driver", "tools")]
    return sorted(path.relative_to(RUNTIME).as_posix() for path in rooms if TIMER.search(path.read_text("utf-8")))


def test_a_timer_outside_the_driver_is_of_a_connection_or_a_decision_that_is_listed() -> None:
    assert sorted(re.findall(r"^\| `([a-z_/]+\.py)` \|", PAGE, re.MULTILINE)) == modules_with_timers()


def test_modules_that_the_page_names_exist() -> None:
    named = dict.fromkeys(re.findall(r"`((?:node|driver|client|brokers|archiving)/[a-z_/]+\.py)`", PAGE))
    assert [name for name in named if not (RUNTIME / name).is_file()] == []
