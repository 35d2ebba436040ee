"""Statements for PostgreSQL as texts: their words, and what no tree of the server shows.

A change of the schema leaves no tree of what it evaluates once, so its text is read for that. Words are found as the
server finds them: comments stand in comments, texts have escapes, or stand between dollars.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice, pairwise

from unisono.errors import MisuseError

_TOKENS = re.compile(
    r"""(?P<blank>\s+|--[^\n\r]*)
      | (?P<comment>/\*)
      | (?P<escaped>e'(?:[^'\\]|''|\\.)*')
      | (?P<points>u&'(?:[^']|'')*')
      | (?P<text>'(?:[^']|'')*')
      | (?P<dollars>\$(?P<tag>(?:[a-z_\x80-\U0010ffff][\w]*)?)\$.*?\$(?P=tag)\$)
      | (?P<name>"(?:[^"]|"")*")
      | (?P<word>[a-z_\x80-\U0010ffff][\w$]*)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_COMMENTS = re.compile(r"/\*|\*/")
_TEXTS = frozenset(("escaped", "points", "text", "dollars"))
MOMENTS = re.compile(r"\b(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
_QUOTED_MOMENTS = re.compile(r"'[^']*\b(now|today|tomorrow|yesterday)\b[^']*'", re.IGNORECASE)
_HIDDEN_TEXT = re.compile(r"""\be'[^']*\\|\bu&'|'[ \t\f\v]*[\r\n]\s*'""", re.IGNORECASE)
"""Texts that are not what they look like: escapes, code points, texts that go on in another line."""
_ACCESS_METHODS = frozenset(("index", "btree", "hash", "gist", "gin", "spgist", "brin"))
_COMMENTED = frozenset(
    ("table", "column", "index", "view", "type", "domain", "schema", "function", "trigger", "constraint")
)


def tokens_of(sql: str) -> Iterator[tuple[str, str]]:
    """What kind of token, and which; without blanks and comments."""
    at = 0
    while at < len(sql):
        token = _TOKENS.match(sql, at)
        assert token is not None, "any character is a token"
        at, kind = token.end(), token.lastgroup or ""
        if kind == "comment":
            at = _end_of_comment(sql, at)
        elif kind != "blank":
            yield "dollars" if kind == "tag" else kind, token.group()


def _end_of_comment(sql: str, at: int) -> int:
    """Comments stand in comments; one that is not closed goes on to the end."""
    depth = 1
    while depth:
        mark = _COMMENTS.search(sql, at)
        if mark is None:
            return len(sql)
        depth, at = depth + (1 if mark.group() == "/*" else -1), mark.end()
    return at


def words_of(sql: str) -> Iterator[str]:
    """Words in lower case, and brackets and commas; neither comments nor anything quoted."""
    for kind, token in tokens_of(sql):
        if kind == "word":
            yield token.lower()
        elif kind == "other" and token in "(),;":
            yield token


@lru_cache(maxsize=256)
def first_words(sql: str) -> tuple[str, ...]:
    """The first two, without brackets that are closed or commas."""
    return tuple(islice((word for word in words_of(sql) if word not in ",;)"), 2))


def names_a_moment(sql: str) -> bool:
    """It may have a text that says now, openly or in disguise."""
    return bool(MOMENTS.search(sql) or _HIDDEN_TEXT.search(sql))


def check_names(sql: str) -> None:
    """Raises MisuseError for names that would be fields in the trees of the server."""
    for kind, token in tokens_of(sql):
        if (kind == "name" and token.startswith('":')) or 'u&"' in sql.lower():
            raise MisuseError("names that begin with a colon, or are written in code points: choose others")


def check_ddl(sql: str) -> None:
    """What no catalog shows afterwards: expressions that are evaluated once, and what depends on roles and files."""
    words = list(words_of(sql))
    pairs = list(pairwise(words))
    after = dict(pairs)
    if words[:1] == ["comment"]:
        if not _COMMENTED.intersection(words[2:3]):
            raise MisuseError("COMMENT ON what is not in this database alone: on tables and their like")
    elif _says_a_moment(sql, words):
        raise MisuseError("'now' and its like, also in disguise, are read once, by every replica at another time")
    if "concurrently" in words:
        raise MisuseError("CONCURRENTLY: an operation is one transaction as it is")
    if words[:1] == ["alter"] and "using" in words and after["using"] not in _ACCESS_METHODS:
        raise MisuseError("ALTER … TYPE … USING computes every row at once: add a column, UPDATE it, drop the old one")
    if words[:2] == ["alter", "type"] and after.get("add") == "value":
        raise MisuseError("ALTER TYPE … ADD VALUE: not to be used before it is committed; make another type")
    if after.get("row") == "level" and "security" in words:
        raise MisuseError("ROW LEVEL SECURITY means something else to other roles: give others rights to read only")
    if after.get("trigger") == "all":
        raise MisuseError("TRIGGER ALL needs rights that not every replica's role has: name them, or say USER")
    if "function" in words and "language" in words and after["language"] not in ("sql", "plpgsql"):
        raise MisuseError("functions may be written in sql and plpgsql (without quotes around the name)")
    changes_owner = ("owner", "to") in pairs and not {("column", "owner"), ("rename", "owner")}.intersection(pairs)
    if changes_owner or "authorization" in words:
        raise MisuseError("roles differ between servers: everything belongs to the replica's role")
    if "tablespace" in words:
        raise MisuseError("tablespaces differ between servers: leave it out")
    if after.get("compression", "default") not in ("default", "pglz"):
        raise MisuseError("COMPRESSION is what a server was built with: leave it out")


def _says_a_moment(sql: str, words: list[str]) -> bool:
    """In a text of the statement; or, of a function, in a text of its body."""
    if _HIDDEN_TEXT.search(sql) or _QUOTED_MOMENTS.search(sql):
        return True
    texts = [token for kind, token in tokens_of(sql) if kind in _TEXTS]
    return "function" not in words[:4] and any(map(MOMENTS.search, texts))
