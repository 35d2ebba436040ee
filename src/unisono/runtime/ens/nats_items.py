"""Items as NATS messages: the payload is the payload, who published it stands in one header.

    Unisono-Id: <publisher> <request>

A topic is the subject of the same name; its control sibling is `_unisono.ctl.<topic>`.
"""

from unisono.runtime.ens.adapter import RESERVED, Item

ID = "Unisono-Id"
CONTROL = f"{RESERVED}.ctl."
_START = "NATS/1.0\r\n"
_END = b"\r\n\r\n"
_MESSAGE_ID = b"Nats-Msg-Id: "
_DIGITS_MAX = 20
_NAMES_MAX = 10_000

_names: dict[bytes, str] = {}
"""Publishers seen, by all of the head that comes before the request: the same str object for each of their items."""


def encode(items: list[Item]) -> bytes:
    """PUB or HPUB commands. Names and headers were checked by the outbox."""
    parts: list[bytes] = []
    for item in items:
        payload = item.payload
        subject = CONTROL + item.topic if item.control else item.topic
        if not item.publisher and item.headers is None:
            parts += (b"PUB %b %d\r\n" % (subject.encode(), len(payload)), payload, b"\r\n")
            continue
        if item.headers is None:
            head = f"{_START}{ID}: {item.publisher} {item.request}\r\n\r\n".encode()
        else:
            head = header_block(item)
        size = len(head)
        parts.append(b"HPUB %b %d %d\r\n%b%b\r\n" % (subject.encode(), size, size + len(payload), head, payload))
    return b"".join(parts)


def header_block(item: Item, extra: str = "") -> bytes:
    """All headers of an item; `extra` is a line of the adapter's own, with its line end."""
    lines = [_START]
    if item.publisher:
        lines.append(f"{ID}: {item.publisher} {item.request}\r\n")
    if item.headers is not None:
        lines += [f"{name}: {value}\r\n" for name, value in item.headers.items()]
    return ("".join(lines) + extra + "\r\n").encode()


def decode(topic: str, control: bool, head: bytes, payload: bytes, position: int = 0) -> Item:
    """An item from what came. An identification that is none makes the item foreign."""
    if not head:
        return Item(topic, payload, "", 0, control, None, position)
    # Nearly all items have no other header (but JetStream's), and come from a publisher seen before.
    end = head.find(_MESSAGE_ID) - 2
    if end < 0 or head.count(b"\r\n") != 4:
        end = len(head) - 4
    until = head.rfind(b" ", 0, end) + 1
    name = _names.get(head[:until])
    if name is not None:
        digits = head[until:end]
        if digits.isdigit() and len(digits) <= _DIGITS_MAX and head.endswith(_END):
            return Item(topic, payload, name, int(digits), control, None, position)
    publisher, request, headers = _parse(head)
    return Item(topic, payload, publisher, request, control, headers, position)


def _parse(head: bytes) -> tuple[str, int, dict[str, str] | None]:
    publisher, request = "", 0
    headers: dict[str, str] = {}
    for line in head.decode(errors="replace").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        value = value.strip()
        if not colon:
            continue
        if name == ID:
            who, _, digits = value.rpartition(" ")
            if who and digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX:
                if len(_names) >= _NAMES_MAX:
                    _names.clear()
                key = f"{_START}{ID}: {who} ".encode()
                publisher, request = _names.setdefault(key, who), int(digits)
        elif not name.startswith("Nats-"):
            headers[name] = value
    return publisher, request, headers or None
