"""Finding nodes by DNS: the SRV records of `_unisono._tcp.DOMAIN` (RFC 2782), asked over UDP, over TCP if truncated.

The standard library resolves addresses only, and one question of one type does not need more than this. An answer is
believed if it comes from the server asked, bears the question's random number and repeats the question. Everything in
it is bounded: names by 255 bytes, jumps inside a name by their going backwards.
"""

import asyncio
import random
import secrets
import socket
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from unisono.errors import MisuseError, PeerError, TransportError

SERVICE = "_unisono._tcp"
TRY_S = 1.0
"""A question over UDP is repeated after this."""
_PORT = 53
_A, _AAAA, _SRV = 1, 28, 33
_IN = 1


class Target(NamedTuple):
    """One SRV record."""

    priority: int
    weight: int
    port: int
    host: str


class Answer(NamedTuple):
    """What a server said."""

    targets: list[Target]
    addresses: dict[str, str]
    truncated: bool


async def resolve_srv(domain: str, server: tuple[str, int] | None, timeout_s: float) -> list[str]:
    """`host:port` of the nodes of a domain, best first; raises TransportError when DNS knows none."""
    name = f"{SERVICE}.{domain}"
    number = secrets.randbelow(1 << 16)
    question = encode_question(name, number)
    where = server or (_first_nameserver(), _PORT)
    try:
        async with asyncio.timeout(timeout_s):
            answer = decode_answer(await _ask_udp(question, where), question)
            if answer.truncated:
                answer = decode_answer(await _ask_tcp(question, where), question)
    except TimeoutError:
        raise TransportError(f"the DNS server {where[0]}:{where[1]} does not answer") from None
    except OSError as error:
        raise TransportError(f"the DNS server {where[0]}:{where[1]}: {error.strerror or error}") from None
    if not answer.targets:
        raise TransportError(f"DNS has no SRV record for {name}")
    ordered = in_turn(answer.targets, random.Random(secrets.randbits(64)))
    return [f"{answer.addresses.get(target.host, target.host)}:{target.port}" for target in ordered]


def in_turn(targets: list[Target], dice: random.Random) -> list[Target]:
    """The lowest priority first; within one, drawn by weight."""
    rest, turn = list(targets), []
    while rest:
        first = min(target.priority for target in rest)
        equals = [target for target in rest if target.priority == first]
        drawn = dice.choices(equals, [target.weight or 0.01 for target in equals])[0]
        rest.remove(drawn)
        turn.append(drawn)
    return turn


def encode_question(name: str, number: int) -> bytes:
    """A query for SRV records, recursion desired."""
    labels = (
        name.rstrip(".").encode("idna").split(b".") if not name.isascii() else name.rstrip(".").encode().split(b".")
    )
    if not all(0 < len(label) < 64 for label in labels) or sum(len(label) + 1 for label in labels) > 254:
        raise MisuseError(f"{name!r} is no domain name")
    spelt = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    return (
        number.to_bytes(2, "big") + b"\1\0\0\1\0\0\0\0\0\0" + spelt + _SRV.to_bytes(2, "big") + _IN.to_bytes(2, "big")
    )


def decode_answer(data: bytes, question: bytes) -> Answer:
    """Reads a response to the question; raises PeerError if it is none."""
    try:
        return _decode(data, question)
    except (IndexError, UnicodeDecodeError, ValueError) as error:
        raise PeerError(f"a DNS answer that cannot be read: {error}") from None


def _decode(data: bytes, question: bytes) -> Answer:
    if len(data) < 12 or data[:2] != question[:2] or not data[2] & 0x80:
        raise PeerError("a DNS answer to another question")
    code = data[3] & 0x0F
    if code not in (0, 3):  # 3: there is no such name
        raise PeerError(f"the DNS server refuses the question (code {code})")
    if data[12 : len(question)].lower() != question[12:].lower():
        raise PeerError("a DNS answer to another question")
    counts = [int.from_bytes(data[i : i + 2], "big") for i in (6, 8, 10)]
    at, targets = len(question), list[Target]()
    addresses: dict[str, str] = {}
    truncated = bool(data[2] & 0x02)
    for _ in range(0 if truncated else sum(counts)):
        name, at = _name(data, at)
        kind, length = int.from_bytes(data[at : at + 2], "big"), int.from_bytes(data[at + 8 : at + 10], "big")
        at += 10
        if at + length > len(data):
            raise ValueError("a record that is cut off")
        if kind == _SRV and length >= 7:
            priority, weight, port = (int.from_bytes(data[at + i : at + i + 2], "big") for i in (0, 2, 4))
            targets.append(Target(priority, weight, port, _name(data, at + 6)[0]))
        elif (kind, length) in ((_A, 4), (_AAAA, 16)):
            address = ip_address(data[at : at + length])
            addresses.setdefault(name, str(address))
        at += length
    return Answer([target for target in targets if target.host], addresses, truncated)


def _name(data: bytes, at: int) -> tuple[str, int]:
    """The name at this offset, and the offset behind it. A jump goes to an earlier place, so every name ends."""
    labels: list[str] = []
    behind, limit = 0, at
    while True:
        length = data[at]
        if length >= 0xC0:
            behind = behind or at + 2
            at = int.from_bytes(data[at : at + 2], "big") & 0x3FFF
            if at >= limit:
                raise ValueError("a name that jumps forward")
            limit = at
            continue
        if not length:
            return ".".join(labels), behind or at + 1
        labels.append(data[at + 1 : at + 1 + length].decode("ascii").lower())
        at += 1 + length
        if sum(len(label) + 1 for label in labels) > 254:
            raise ValueError("a name of more than 255 bytes")


async def _ask_udp(question: bytes, where: tuple[str, int]) -> bytes:
    """Asks until something with our number comes back."""
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as line:
        line.setblocking(False)
        await loop.sock_connect(line, where)  # from now on only this server is heard
        while True:
            await loop.sock_sendall(line, question)
            try:
                async with asyncio.timeout(TRY_S):
                    while True:
                        data = await loop.sock_recv(line, 65_535)
                        if data[:2] == question[:2]:
                            return data
            except TimeoutError:
                continue
            except ConnectionRefusedError:
                await asyncio.sleep(0.05)


async def _ask_tcp(question: bytes, where: tuple[str, int]) -> bytes:
    reader, writer = await asyncio.open_connection(*where)
    try:
        writer.write(len(question).to_bytes(2, "big") + question)
        return await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
    except asyncio.IncompleteReadError:
        raise PeerError("the DNS server hung up in the middle of its answer") from None
    finally:
        writer.close()


def _first_nameserver(path: Path = Path("/etc/resolv.conf")) -> str:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        words = line.split()
        if len(words) > 1 and words[0] == "nameserver":
            return words[1]
    return "127.0.0.1"
