"""Records in an append-only file: length, checksum, body. Pure functions over bytes; files are somebody else's.

A commit is one record, however much it holds. So after a crash only the last record can be torn: it is cut off and
the file goes on. A bad record with anything after it was damaged at rest, and that is never repaired silently.
"""

import struct
import zlib

from unisono.errors import FormatError

_HEAD = struct.Struct("<II")  # length of the body, crc32 of length and body
RECORD_BYTES_MAX = 1 << 30


def frame(body: bytes) -> bytes:
    """One record, ready to be appended."""
    if not 0 < len(body) <= RECORD_BYTES_MAX:
        raise ValueError(f"a record holds 1 to {RECORD_BYTES_MAX} bytes, not {len(body)}")
    length = len(body).to_bytes(4, "little")
    return _HEAD.pack(len(body), zlib.crc32(body, zlib.crc32(length))) + body


def scan(data: bytes | memoryview, start: int = 0) -> tuple[list[memoryview], int]:
    """The bodies of all whole records from `start`, and where they end; what comes after that is a torn tail.

    Raises FormatError when a record is damaged and it is not the last one.
    """
    view = memoryview(data)
    bodies: list[memoryview] = []
    at, end = start, len(view)
    while at < end:
        if end - at < _HEAD.size:
            break
        length, checksum = _HEAD.unpack_from(view, at)
        body_at = at + _HEAD.size
        if length == 0 and not any(view[at:end]):
            break  # the file was extended, but the data never reached the disk
        if not 0 < length <= RECORD_BYTES_MAX:
            raise FormatError(f"byte {at}", f"a record cannot hold {length} bytes")
        if body_at + length > end:
            break
        body = view[body_at : body_at + length]
        if zlib.crc32(body, zlib.crc32(view[at : at + 4])) != checksum:
            if body_at + length == end:
                break
            raise FormatError(f"byte {at}", "the record's checksum is wrong and other records follow it")
        bodies.append(body)
        at = body_at + length
    return bodies, at
