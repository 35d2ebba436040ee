"""Items as NATS messages: the payload is the payload, who published it stands in one header.

    Unisono-Id: <publisher> <request>

A topic is the subject of the same name; its control sibling is `_unisono.ctl.<topic>`.
"""

from unisono.runtime.ens.adapter import RESERVED, Item
from unisono.runtime.ens.nats_wire import Msg

ID = "Unisono-Id"
CONTROL = f"{RESERVED}.ctl."
_START = "NATS/1.0\r\n"
_END = b"\r\n\r\n"
_MESSAGE_ID = b"\r\nNats-Msg-Id:"
_DIGITS_MAX = 20
_NAMES_MAX = 10_000

_names: dict[bytes, str] = {}
"""Publishers seen, by all of the head before the request: the same str object for each of their items."""


def encode(items: list[Item]) -> bytes:
    """PUB or HPUB commands. Names and headers were checked by the outbox."""
    parts: list[bytes] = []
    add = parts.append
    subject = line = b""
    topic: str | None = None
    publisher: str | None = None
    payload_bytes = request_end = 0
    for item in items:
        payload = item.payload
        # Items come in rows of one topic and one publisher, and many are of one size: their first lines are the same.
        if item.topic is not topic or item.control:
            topic = None if item.control else item.topic
            subject = (CONTROL + item.topic if item.control else item.topic).encode()
            publisher = None
        if not item.publisher and item.headers is None:
            add(b"PUB %b %d\r\n%b\r\n" % (subject, len(payload), payload))
            continue
        if item.headers is not None:
            head = header_block(item)
            add(b"HPUB %b %d %d\r\n%b%b\r\n" % (subject, len(head), len(head) + len(payload), head, payload))
            continue
        request = item.request
        if item.publisher is not publisher or len(payload) != payload_bytes or request >= request_end:
            publisher, payload_bytes = item.publisher, len(payload)
            digits = len(str(request))
            request_end = 10**digits
            before = f"{_START}{ID}: {publisher} ".encode()
            size = len(before) + digits + len(_END)
            line = b"HPUB %b %d %d\r\n%b" % (subject, size, size + payload_bytes, before)
        add(b"%b%d\r\n\r\n%b\r\n" % (line, request, payload))
    return b"".join(parts)


def header_block(item: Item, extra: str = "") -> bytes:
    """All headers of an item; `extra` is a line of the adapter's own, with its line end."""
    lines = [_START]
    if item.publisher:
        lines.append(f"{ID}: {item.publisher} {item.request}\r\n")
    if item.headers is not None:
        lines += [f"{name}: {value}\r\n" for name, value in item.headers.items()]
    return ("".join(lines) + extra + "\r\n").encode()


def decode_all(channels: dict[bytes, tuple[str, bool]], messages: list[Msg]) -> list[Item]:
    """Items from what came on the channels of these subscriptions."""
    items: list[Item] = []
    add, names = items.append, _names
    for sid, _, _, head, payload in messages:
        channel = channels.get(sid)
        if channel is None:
            continue
        topic, control = channel
        if head:
            # Nearly all items come from a publisher seen before and have no other header.
            before, _, digits = head.rpartition(b" ")
            name = names.get(before)
            if name is not None:
                digits = digits.removesuffix(_END)
                if digits.isdigit() and len(digits) <= _DIGITS_MAX:
                    add(Item(topic, payload, name, int(digits), control))
                    continue
            add(decode(topic, control, head, payload))
        else:
            add(Item(topic, payload, "", 0, control))
    return items


def decode(topic: str, control: bool, head: bytes, payload: bytes, position: int = 0) -> Item:
    """An item from what came. An identification that is none makes the item foreign."""
    if not head:
        return Item(topic, payload, "", 0, control, None, position)
    before, _, digits = head.rpartition(b" ")
    if before.endswith(_MESSAGE_ID):  # JetStream's
        before, _, digits = before.removesuffix(_MESSAGE_ID).rpartition(b" ")
    name = _names.get(before)
    if name is not None:
        digits = digits.removesuffix(_END)
        if digits.isdigit() and len(digits) <= _DIGITS_MAX:
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
                key = f"{_START}{ID}: {who}".encode()
                publisher, request = _names.setdefault(key, who), int(digits)
        elif not name.startswith("Nats-"):
            headers[name] = value
    return publisher, request, headers or None
