"""Items as NATS messages: the payload is the payload, who published it and when stand in two headers.

    Unisono-At: <microseconds since the epoch, sixteen digits>
    Unisono-Id: <publisher> <request>

The moment comes first and is always as long: what is before the request is then the same for a whole row, and the rest
is found without parsing. Items without a moment, of publishers that do not tell it, are as good.
A topic is the subject of the same name; its control sibling is `_unisono.<deployment>.ctl.<topic>`: whoever shares the
topic with us runs other numbers.
"""

from collections.abc import Sequence

from unisono.runtime.brokers.contract import RESERVED, Item, ItemRow, Parcel
from unisono.runtime.brokers.nats.codec import MessageRun, Received

ID = "Unisono-Id"
AT = "Unisono-At"
_START = "NATS/1.0\r\n"
_END = b"\r\n\r\n"
_AT_START = f"{_START}{AT}: ".encode()
_AT_DIGITS = 16
_AT_END = len(_AT_START) + _AT_DIGITS
_MESSAGE_ID = b"\r\nNats-Msg-Id:"
_DIGITS_MAX = 20
_NAMES_MAX = 10_000

_names: dict[bytes, str] = {}
"""Publishers seen, by the head from `Unisono-Id` to the request: the same str object for each of their items."""


def control_prefix(deployment: str) -> str:
    """What stands before the topic in the subjects of control messages."""
    return f"{RESERVED}.{deployment}.ctl."


def encode(items: Sequence[Parcel], control: str) -> bytes:
    """PUB or HPUB commands; `control` is the prefix. Names and headers were checked by the outbox."""
    parts: list[bytes] = []
    add = parts.append
    topic: str | None = None
    subject = b""
    for item in items:
        if not isinstance(item, Item):
            parts += _encode_row(item)
            continue
        payload = item.payload
        if item.topic is not topic or item.control:  # many are in a row on one topic
            topic = None if item.control else item.topic
            subject = (control + item.topic if item.control else item.topic).encode()
        if not item.publisher and item.headers is None:
            add(b"PUB %b %d\r\n%b\r\n" % (subject, len(payload), payload))
        else:
            head = header_block(item)
            add(b"HPUB %b %d %d\r\n%b%b\r\n" % (subject, len(head), len(head) + len(payload), head, payload))
    return b"".join(parts)


def _encode_row(row: ItemRow) -> list[bytes]:
    """Many are of one size: what is before the request is then the same."""
    parts: list[bytes] = []
    add, request = parts.append, row.request
    before = f"{_START}{_moment(row.born_us)}{ID}: {row.publisher} ".encode()
    subject = row.topic.encode()
    line, payload_bytes, request_end = b"", -1, 0
    for payload in row.payloads:
        if len(payload) != payload_bytes or request >= request_end:
            payload_bytes, digits = len(payload), len(str(request))
            request_end = 10**digits
            size = len(before) + digits + len(_END)
            line = b"HPUB %b %d %d\r\n%b" % (subject, size, size + payload_bytes, before)
        add(b"%b%d\r\n\r\n%b\r\n" % (line, request, payload))
        request += 1
    return parts


def header_block(item: Item, extra: str = "") -> bytes:
    """All headers of an item; `extra` is a line of the adapter's own, with its line end."""
    lines = [_START]
    if item.publisher:
        lines.append(f"{_moment(item.born_us)}{ID}: {item.publisher} {item.request}\r\n")
    if item.headers is not None:
        lines += [f"{name}: {value}\r\n" for name, value in item.headers.items()]
    return ("".join(lines) + extra + "\r\n").encode()


def _moment(born_us: int) -> str:
    return f"{AT}: {born_us:0{_AT_DIGITS}}\r\n" if born_us else ""


def _known(before: bytes) -> tuple[str | None, int]:
    """The publisher, if it has been seen, and the moment, from what is before the request."""
    if not before.startswith(_AT_START):
        return _names.get(before[len(_START) :]), 0
    moment = before[len(_AT_START) : _AT_END]
    return _names.get(before[_AT_END + 2 :]), int(moment) if moment.isdigit() else 0


def decode_all(channels: dict[bytes, tuple[str, bool]], received: list[Received]) -> list[Parcel]:
    """Items from what came on the channels of these subscriptions."""
    items: list[Parcel] = []
    add = items.append
    for one in received:
        channel = channels.get(one[0])
        if channel is None:
            continue
        topic, control = channel
        if isinstance(one, MessageRun):
            items += _decode_run(topic, control, one)
            continue
        _, _, _, head, payload = one
        add(decode(topic, control, head, payload) if head else Item(topic, payload, "", 0, control))
    return items


def _decode_run(topic: str, control: bool, run: MessageRun) -> list[Parcel]:
    """Header blocks of one length: if they are those of consecutive requests, they need not be read one by one."""
    heads, size, payloads = run.heads(), run.head_bytes, run.payloads()
    if not size or control:
        return [decode(topic, control, heads[i * size : (i + 1) * size], each) for i, each in enumerate(payloads)]
    items: list[Parcel] = []
    at = 0
    while at < run.length:
        head = heads[at * size : (at + 1) * size]
        before, _, digits = head.rpartition(b" ")
        (name, born), count = _known(before), 0
        if name is not None and (digits := digits.removesuffix(_END)).isdigit() and len(digits) <= _DIGITS_MAX:
            request, rest = int(digits), run.length - at
            alike = before.replace(b"%", b"%%") + b" %d" + _END
            count = _common(heads[at * size :], alike * rest % tuple(range(request, request + rest)), size, rest)
            if count:
                items.append(ItemRow(topic, payloads[at : at + count], name, request, born))
        if not count:
            items.append(decode(topic, False, head, payloads[at]))
        at += count or 1
    return items


def _common(one: bytes, other: bytes, size: int, count: int) -> int:
    """How many of `count` pieces of this size are the same at the beginning of both."""
    if one == other:
        return count
    low, high = 0, count  # the first `low` are the same, the first `high` are not
    while high - low > 1:
        middle = (low + high) // 2
        if one[: middle * size] == other[: middle * size]:
            low = middle
        else:
            high = middle
    return low


def decode(topic: str, control: bool, head: bytes, payload: bytes, position: int = 0) -> Item:
    """An item from what came. An identification that is none makes the item foreign."""
    if not head:
        return Item(topic, payload, "", 0, control, position=position)
    before, _, digits = head.rpartition(b" ")
    if before.endswith(_MESSAGE_ID):  # JetStream's
        before, _, digits = before.removesuffix(_MESSAGE_ID).rpartition(b" ")
    name, born = _known(before)
    if name is not None:
        digits = digits.removesuffix(_END)
        if digits.isdigit() and len(digits) <= _DIGITS_MAX:
            return Item(topic, payload, name, int(digits), control, None, born, position)
    publisher, request, headers, born = _parse(head)
    return Item(topic, payload, publisher, request, control, headers, born, position)


def _parse(head: bytes) -> tuple[str, int, dict[str, str] | None, int]:
    publisher, request, born = "", 0, 0
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
                key = f"{ID}: {who}".encode()
                publisher, request = _names.setdefault(key, who), int(digits)
        elif name == AT:
            born = int(value) if value.isascii() and value.isdigit() and len(value) == _AT_DIGITS else 0
        elif not name.startswith("Nats-"):
            headers[name] = value
    return publisher, request, headers or None, born if publisher else 0
