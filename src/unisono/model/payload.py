"""What users publish, as bytes, and back: bytes as they are, everything else as JSON.

Types are given by the subscriber: `bytes` for raw payloads, any type msgspec knows, or a pydantic model.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from unisono.errors import MisuseError, PeerError

Decode = Callable[[bytes], Any]
_encoder = msgspec.json.Encoder()
_any = msgspec.json.Decoder()


def check_batch(batch: Any) -> None:
    """Raises MisuseError for what is no row of events; a text or bytes would be one event per letter."""
    if isinstance(batch, str | bytes | bytearray) or not isinstance(batch, Iterable):
        raise MisuseError(f"several events, like a list; {batch!r:.60} is of the type {type(batch).__name__}")


def encode_payload(data: Any, bytes_max: int) -> bytes:
    """`encode_payload({"px": 1}, 100) == b'{"px":1}'`; bytes stay bytes, pydantic models become their JSON.

    Raises MisuseError if nothing becomes of it, or more than `bytes_max`.
    """
    payload = data if type(data) is bytes else _encode(data)
    if len(payload) > bytes_max:
        raise MisuseError(
            f"a payload of {len(payload)} bytes; this broker takes up to {bytes_max}. Publish it in parts"
        )
    return payload


def _encode(data: Any) -> bytes:
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    dump = getattr(data, "model_dump_json", None)
    try:
        if dump is None:
            return _encoder.encode(data)
        text: str = dump()
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise MisuseError(f"{type(data).__name__} cannot be published: {error}") from None


def payload_decoder(kind: Any) -> Decode:
    """A function from payload bytes to `kind`; without a kind JSON if it is JSON, else the bytes."""
    if kind is None:
        return decode_any
    if kind is bytes:
        return lambda payload: payload
    validate = getattr(kind, "model_validate_json", None)
    if validate is not None:
        return lambda payload: _checked(validate, payload, kind)
    try:
        decoder = msgspec.json.Decoder(kind)
    except TypeError as error:
        raise MisuseError(f"type={kind!r:.60}: a type that msgspec knows, a pydantic model or bytes: {error}") from None
    return lambda payload: _checked(decoder.decode, payload, kind)


def decode_any(payload: bytes) -> Any:
    """JSON if it is JSON, else the bytes."""
    try:
        return _any.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return payload


def _checked(decode: Callable[[bytes], Any], payload: bytes, kind: Any) -> Any:
    try:
        return decode(payload)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise PeerError(f"a payload is not a {getattr(kind, '__name__', kind)}: {error}") from None
