"""Who belongs to which group of brokers: a view that all agree on, because it only ever changes by compare-and-set.

Brokers of one region below the same broker are a *group*, and so are the roots of a region; they stand in for each
other. The view names every broker that may act, in the life in which it may (specs: entourage, section 0, groups).
Here is what follows from a view; who keeps it is the driver's business.
"""

from msgspec import Struct


class GroupMember(Struct, frozen=True):
    """One broker in one life."""

    name: str
    region: str
    parent: str | None
    address: str
    """Where others dial."""
    life: str
    """Drawn at each start."""


class GroupView(Struct, frozen=True):
    """All members of all groups of a deployment; `version` counts the changes."""

    version: int = 0
    members: tuple[GroupMember, ...] = ()

    def find(self, name: str) -> GroupMember | None:
        return next((member for member in self.members if member.name == name), None)

    def entered(self, member: GroupMember) -> "GroupView":
        """With this member; an earlier life of it is a member no more."""
        others = tuple(known for known in self.members if known.name != member.name)
        return GroupView(self.version + 1, tuple(sorted((*others, member), key=lambda each: each.name)))

    def left(self, name: str, life: str) -> "GroupView":
        """Without this life of it; the same view if it is none of ours."""
        kept = tuple(known for known in self.members if (known.name, known.life) != (name, life))
        return self if len(kept) == len(self.members) else GroupView(self.version + 1, kept)

    def siblings(self, member: GroupMember) -> list[GroupMember]:
        """Its group, itself included, by name."""
        return [each for each in self.members if (each.region, each.parent) == (member.region, member.parent)]

    def parents(self, member: GroupMember) -> list[GroupMember]:
        """Whom it could be below: the broker it names, then those that stand in for that one."""
        if member.parent is None:
            return []
        named = self.find(member.parent)
        if named is None:
            return []
        return [named, *(each for each in self.siblings(named) if each != named)]

    def watched_by(self, member: GroupMember) -> GroupMember | None:
        """Whom it looks after: the next of its group by name, around; nobody if it is alone."""
        group = self.siblings(member)
        if member not in group or len(group) < 2:
            return None
        return group[(group.index(member) + 1) % len(group)]

    def why_out(self, member: GroupMember) -> str | None:
        """Why this life may not act any more; None if it may."""
        known = self.find(member.name)
        if known is None:
            return f"{member.name} is a member no more (version {self.version}): it was taken to have stopped"
        if known.life != member.life:
            return f"another process is {member.name} now (version {self.version})"
        return None


class SeenBeat:
    """When somebody else's beat was last seen to change."""

    __slots__ = ("at_s", "life", "number")

    def __init__(self, life: str, number: int, at_s: float) -> None:
        self.life, self.number, self.at_s = life, number, at_s

    def silent_s(self, life: str, number: int, now_s: float) -> float:
        """Notes what is seen now; how long it has been the same."""
        if (life, number) != (self.life, self.number):
            self.life, self.number, self.at_s = life, number, now_s
        return now_s - self.at_s
