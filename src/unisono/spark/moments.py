"""Moments as options of sources tell them."""

from datetime import UTC, datetime

from unisono.errors import MisuseError


def moment_us(text: str, name: str) -> int:
    """`moment_us("2026-01-01T12:00:00Z", "startingTimestamp")`: microseconds; a number is some already."""
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise MisuseError(f"{name} is a moment (2026-01-01T12:00:00Z) or microseconds, not {text!r}") from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1_000_000)
