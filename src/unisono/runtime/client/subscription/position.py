"""Positions: opaque resume tokens, and the files that keep them.

A position says for every topic of a subscription which number was delivered last.
"""

import base64
from pathlib import Path
from typing import Any

import msgspec

from unisono.errors import MisuseError, TransportError, said
from unisono.model.arguments import expect
from unisono.runtime.driver.data_directory import write_durably
from unisono.runtime.links.frames import UNREADABLE

POSITION_VERSION = 1


def encode_position(numbers: dict[str, int]) -> str:
    packed = msgspec.msgpack.encode((POSITION_VERSION, numbers))
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def decode_position(text: str) -> dict[str, int]:
    """The last number delivered per topic; raises MisuseError."""
    expect("a position", text, str, "text, the position of a notification")
    try:
        packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        version, numbers = msgspec.msgpack.decode(packed, type=tuple[int, dict[str, int]])
    except (ValueError, *UNREADABLE):
        raise MisuseError(
            f'{text!r:.60} is not a position: write "latest", "earliest", or the position of a notification'
        ) from None
    if version != POSITION_VERSION:
        raise MisuseError(f"position version {version} is unknown, this is version {POSITION_VERSION}")
    return numbers


def numbers_of(start: Any) -> dict[str, int]:
    """The numbers after which a subscription starts: of a position, or none for "latest" and "earliest"."""
    return {} if start in ("latest", "earliest") else decode_position(start)


def read_position(directory: Path, name: str) -> str | None:
    """What was kept under this name, if anything was."""
    try:
        return (directory / f"{name}.position").read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise MisuseError(f"state: {directory / name}.position cannot be read: {said(error)}") from None


def write_position(directory: Path, name: str, position: str) -> None:
    """Keeps a position; it is on disk when this returns, or TransportError."""
    try:
        write_durably(directory / f"{name}.position", position.encode())
    except OSError as error:
        raise TransportError(f"the position of {name!r} is not kept: {error.filename}: {said(error)}") from None
