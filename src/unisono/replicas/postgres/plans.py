"""Whether a statement fails may depend on the server's plan, and plans depend on statistics, which no replicas share.

Of several conditions a plan may look at any one first, and leave out rows for which another would fail: a division by
zero, a text that is no number. So what may fail for a row stands in no condition beside others, nor where LIMIT leaves
rows out; within CASE it may, since its order is kept. Sums and products that overflow are not looked for.
"""

import re
from collections.abc import Callable, Iterator

from unisono.replicas.postgres.trees import TreeNode

_JOIN = "2"
_CALLED = "0"  # FUNCEXPR: by its name, not as a cast
_TEXTS = frozenset((18, 19, 25, 1042, 1043))
_FAILS_FOR_SOME = re.compile(r"div|mod$|pow|sqrt|_path_match_opr|shl$|shr$")
"""Functions of operators that fail for one value and not for the next."""
_DIVIDES = re.compile(r"div|mod$")
_HARMLESS = frozenset(
    (
        *("lower", "upper", "initcap", "length", "char_length", "character_length", "octet_length", "bit_length"),
        *("btrim", "ltrim", "rtrim", "concat", "concat_ws", "replace", "translate", "reverse", "left", "right"),
        *("strpos", "position", "starts_with", "md5", "abs", "ceil", "ceiling", "floor", "round", "trunc", "sign"),
        *("date_part", "extract", "date_trunc", "to_char", "date", "timestamp", "timestamptz", "isfinite", "text"),
        *("bpchar", "varchar", "cardinality", "array_length", "array_position", "array_to_string", "string_to_array"),
        *("jsonb_typeof", "json_typeof", "isempty", "hashtext", "hashtextextended", "timezone", "justify_days"),
    )
)
_HARMLESS_CASTS = frozenset((1742, 1743, 1746))
"""Of floats to numeric and back, which only fail for what is too large for a float."""
_OPERATORS = frozenset(("OPEXPR", "DISTINCTEXPR", "NULLIFEXPR", "SCALARARRAYOPEXPR"))


class WhatMayFail:
    """Of one server: which functions never fail."""

    def __init__(self, name_of: Callable[[int], str], never_fails: Callable[[int], bool]) -> None:
        self._name_of, self._never_fails = name_of, never_fails

    def why_not(self, query: TreeNode) -> str | None:
        """Why the outcome of a query may depend on its plan."""
        conditions = list(_conditions(query))
        sources = [source for source in query.nodes("rtable") if source.first("rtekind") != _JOIN]
        looked_at: list[TreeNode] = []
        if len(conditions) + len(sources) > 2:
            looked_at += conditions
        if any(query.first(field) != "<>" for field in ("limitCount", "limitOffset")):
            looked_at += _results(query)
        parts = [each for source in sources for each in source.nodes("subquery") if conditions]
        parts += [each for table in query.nodes("cteList") for each in table.nodes("ctequery")]
        looked_at += [result for part in parts if part.first("commandType") == "1" for result in _results(part)]
        if any(self._may_fail(node) for node in looked_at):
            return (
                "what may fail for a row (a division, a text read as a number, a function) beside other conditions, or "
                "under LIMIT: whether the row is looked at depends on the server's plan; say CASE WHEN … THEN … END, "
                "or divide by NULLIF(…, 0)"
            )
        return None

    def _may_fail(self, node: TreeNode) -> bool:
        match node.name:
            case "CASEEXPR" | "QUERY":
                return False
            case "COERCEVIAIO" if node.number("resulttype") not in _TEXTS:
                return True
            case "COERCETODOMAIN":
                return True
            case "FUNCEXPR":
                function = node.number("funcid")
                name = self._name_of(function)
                if _DIVIDES.search(name) and node.first("funcformat") == _CALLED:
                    fails = not _divides_well(node)
                else:
                    fails = (
                        not self._never_fails(function) and name not in _HARMLESS and function not in _HARMLESS_CASTS
                    )
            case name if name in _OPERATORS:
                name = self._name_of(node.number("opfuncid"))
                fails = bool(_FAILS_FOR_SOME.search(name)) and not (_DIVIDES.search(name) and _divides_well(node))
            case _:
                fails = False
        return fails or any(self._may_fail(inner) for field in node.fields for inner in node.nodes(field))


def _divides_well(node: TreeNode) -> bool:
    """By what is the same for all rows, or no zero."""
    return node.nodes("args")[-1].name in ("CONST", "PARAM", "NULLIFEXPR")


def _results(query: TreeNode) -> list[TreeNode]:
    return [node for target in query.nodes("targetList") for node in target.nodes("expr")]


def _conditions(query: TreeNode) -> Iterator[TreeNode]:
    """What rows are chosen by, each by itself."""
    left = [*query.nodes("jointree"), *query.nodes("havingQual")]  # without aggregates HAVING is a WHERE
    while left:
        node = left.pop()
        if node.name in ("FROMEXPR", "JOINEXPR"):
            left += [inner for field in ("fromlist", "larg", "rarg", "quals") for inner in node.nodes(field)]
        elif node.name == "BOOLEXPR" and node.first("boolop") == "and":
            left += node.nodes("args")
        elif node.name != "RANGETBLREF" and all(each.name != "AGGREF" for each in node.walk()):
            yield node
