"""Topic interest: names and patterns.

A topic name is dot-separated words. In a pattern `*` stands for exactly one word and a last `>` for one or more,
as NATS users know it. Content predicates live in `unisono.model.predicate`.
"""

import re
from functools import lru_cache

from unisono.errors import MisuseError

_WORD = re.compile(r"[A-Za-z0-9_\-]+")
FILE_NAME = re.compile(r"[A-Za-z0-9_\-][A-Za-z0-9_.\-]*")
"""What is also the name of a file or a directory: of nodes and subscriptions."""
NAME_BYTES_MAX = 200


def check_topic_name(name: str) -> str:
    """Returns the name, or raises MisuseError saying what is wrong with it."""
    if not name or len(name) > NAME_BYTES_MAX:
        raise MisuseError(f"a topic name has 1 to {NAME_BYTES_MAX} characters, not {len(name)}")
    for word in name.split("."):
        if word != "*" and "*" in word:
            raise MisuseError(f"topic {name!r}: '*' stands for one whole word, as in trades.*")
        if _WORD.fullmatch(word) is None:
            raise MisuseError(f"topic {name!r}: {word!r} is not a word of letters, digits, '_' and '-'")
    return name


def is_pattern(text: str) -> bool:
    return "*" in text or ">" in text


def check_interest(text: str) -> str:
    """Accepts a topic name or a pattern; raises MisuseError saying what is wrong with it."""
    words = text.split(".")
    plain = [word for i, word in enumerate(words) if word != "*" and not (word == ">" and i == len(words) - 1)]
    if plain:
        check_topic_name(".".join(plain))
    return text


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    word = r"[A-Za-z0-9_\-]+"
    parts = [{"*": word, ">": rf"{word}(?:\.{word})*"}.get(part, re.escape(part)) for part in pattern.split(".")]
    return re.compile(r"\.".join(parts))


def covers(pattern: str, name: str) -> bool:
    """`covers("trades.*", "trades.ibm")`."""
    return pattern == name or (is_pattern(pattern) and _compiled(pattern).fullmatch(name) is not None)
