"""How PostgreSQL shows what it has understood: trees of nodes as text, as they stand in its catalogs.

`{FUNCEXPR :funcid 1598 :args <>}` is a node with fields; lists are in brackets, `<>` is nothing. Names that users have
chosen stand in them too, so all nodes are collected where they are read, wherever a name makes them seem to belong.
"""

import re
from collections.abc import Iterator

from msgspec import Struct

_TOKENS = re.compile(r"[(){}]|(?:\\.|[^\s(){}\\])+", re.DOTALL)


class TreeNode(Struct):
    """A node: what stands in its fields, lists spread out."""

    name: str
    fields: "dict[str, list[str | TreeNode]]"

    def first(self, field: str) -> str:
        """The first token of a field; "<>" where there is nothing, "{" where there is a node."""
        for item in self.fields.get(field, ()):
            if isinstance(item, TreeNode):
                return "{"
            if item not in "()":
                return item
        return "<>"

    def number(self, field: str) -> int:
        token = self.first(field)
        return int(token) if token.lstrip("-").isdigit() else 0

    def nodes(self, field: str) -> "list[TreeNode]":
        return [item for item in self.fields.get(field, ()) if isinstance(item, TreeNode)]

    def walk(self) -> "Iterator[TreeNode]":
        """This node and all that stand in it."""
        yield self
        for field in self.fields:
            for node in self.nodes(field):
                yield from node.walk()


def nodes_of(text: str) -> list[TreeNode]:
    """All nodes of a tree, outer ones first."""
    found: list[TreeNode] = []
    tokens: Iterator[str] = (token.group() for token in _TOKENS.finditer(text))
    open_nodes: list[TreeNode] = []
    field: list[list[str | TreeNode]] = [[]]
    for token in tokens:
        if token == "{":
            node = TreeNode(next(tokens, ""), {})
            field[-1].append(node)
            found.append(node)
            open_nodes.append(node)
            field.append([])
        elif token == "}" and open_nodes:
            open_nodes.pop()
            field.pop()
        elif token.startswith(":") and open_nodes:
            field[-1] = open_nodes[-1].fields.setdefault(token[1:], [])
        else:
            field[-1].append(token)
    return found
