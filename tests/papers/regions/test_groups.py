"""Groups of brokers (specs: entourage, section 0): what follows from a view."""

from msgspec import structs

from unisono.protocols.regions.groups import GroupMember, GroupView, SeenBeat

RULES = ("R-GROUP",)


def member(name: str, parent: str | None = None, region: str = "us", life: str = "1") -> GroupMember:
    return GroupMember(name, region, parent, f"{name}:1", life)


def view(*members: GroupMember) -> GroupView:
    found = GroupView()
    for each in members:
        found = found.entered(each)
    return found


def test_siblings_are_of_one_region_and_below_one_broker() -> None:
    roots = view(member("a"), member("b"), member("c", region="eu"), member("d", "a"))
    assert [each.name for each in roots.siblings(member("a"))] == ["a", "b"]
    assert [each.name for each in roots.parents(member("d", "b"))] == ["b", "a"]
    assert roots.parents(member("a")) == []
    assert roots.parents(member("e", "gone")) == []


def test_a_later_life_takes_the_place_of_the_earlier_one_which_may_not_act() -> None:
    first = member("a")
    then = view(first, member("b")).entered(structs.replace(first, life="2"))
    assert then.version == 3
    assert [each.life for each in then.members] == ["2", "1"]
    assert "another process" in (then.why_out(first) or "")
    assert then.why_out(structs.replace(first, life="2")) is None
    assert "no more" in (then.left("a", "2").why_out(structs.replace(first, life="2")) or "")
    assert then.left("a", "1") is then  # what was said of an earlier life does not touch this one


def test_everybody_in_a_group_is_looked_after_by_exactly_one_other() -> None:
    group = [member(name, "top") for name in "pqrs"]
    known = view(*group, member("alone", "p"))
    looked_after = [known.watched_by(each) for each in group]
    assert [each.name for each in looked_after if each is not None] == ["q", "r", "s", "p"]
    assert known.watched_by(member("alone", "p")) is None
    assert known.watched_by(member("out", "top")) is None


def test_silence_is_counted_from_the_last_change_and_a_new_life_begins_anew() -> None:
    beat = SeenBeat("1", 5, 10.0)
    assert beat.silent_s("1", 5, 12.0) == 2.0
    assert beat.silent_s("1", 6, 13.0) == 0.0
    assert beat.silent_s("1", 6, 14.5) == 1.5
    assert beat.silent_s("2", 1, 15.0) == 0.0
