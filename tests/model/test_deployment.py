"""The deployment file: what is written is read back, and every mistake is told in one line with its place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.errors import FormatError
from unisono.model.deployment import Deployment, dump_deployment, parse_deployment
from unisono.model.settings import NodeSpec, Region, TopicSpec

STAR = """
version = 1
[[regions]]
name = "eu"
[[regions]]
name = "us"
[round_trip_ms]
"eu us" = 80.5
[[nodes]]
name = "hub"
region = "us"
[[nodes]]
name = "eu-1"
region = "eu"
parent = "hub"
[[topics]]
name = "trades"
home = "eu-1"
"""


def test_a_star_is_read_with_its_root_children_and_latencies() -> None:
    star = parse_deployment(STAR)
    assert star.root.name == "hub"
    assert star.children("hub") == ("eu-1",)
    assert star.latencies().between("eu", "us") == 40_250


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (("version = 1", "version = 9"), "9 is unknown"),
        (('parent = "hub"', 'parent = "nobody"'), "'nobody' is not a node"),
        (('parent = "hub"', ""), "one root"),
        (('home = "eu-1"', 'home = "mars"'), "'mars' is not a node"),
        (('region = "eu"', 'region = "mars"'), "'mars' is not among"),
        (('"eu us" = 80.5', '"eu" = 80.5'), "not two regions"),
        (('name = "trades"', 'name = "tra des"'), "'tra des'"),
        (('name = "eu-1"', 'name = "hub"'), "twice"),
        (('name = "trades"', 'name = "trades"\ncolour = "red"'), "colour"),
        (("[[topics]]", "[[topics"), "line"),
        (("[[topics]]", '[archive]\nstream = "a.b"\n[[topics]]'), "one word"),
        (("[[topics]]", '[archive]\nstream = "a"\n[[topics]]'), "keeps no streams"),
    ],
)
def test_a_mistake_is_told_in_one_line(edit: tuple[str, str], problem: str) -> None:
    with pytest.raises(Exception, match=problem) as caught:
        parse_deployment(STAR.replace(*edit))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "todo"), [("stamp", "remove the line"), ("ticket", "remove the line.*new data directories")]
)
def test_a_setting_that_is_gone_is_refused_with_what_to_do(mode: str, todo: str) -> None:
    with pytest.raises(FormatError, match=todo) as refused:
        parse_deployment(STAR + f'[sequencing]\nmode = "{mode}"\n')
    assert refused.value.where == "sequencing.mode"


def test_parents_in_a_circle_are_refused() -> None:
    text = (
        STAR
        + '[[nodes]]\nname = "a"\nregion = "eu"\nparent = "b"\n[[nodes]]\nname = "b"\nregion = "eu"\nparent = "a"\n'
    )
    with pytest.raises(FormatError, match="circle"):
        parse_deployment(text)


def test_a_file_without_a_kind_is_of_the_kind_that_has_the_roles_of_its_nodes() -> None:
    assert parse_deployment(STAR).kind == "sequencer"
    overlay = STAR.replace('name = "hub"', 'name = "hub"\nroles = ["overlay"]', 1)
    overlay = overlay.replace('name = "eu-1"', 'name = "eu-1"\nroles = ["overlay"]', 1)
    assert parse_deployment(overlay).kind == "overlay"
    store = STAR.replace('name = "hub"', 'name = "hub"\nroles = ["archive"]', 1)
    assert parse_deployment(store).kind == "sequencer"


def test_nodes_that_name_no_role_have_the_first_of_their_kind() -> None:
    overlay = parse_deployment(STAR.replace("version = 1", 'version = 1\nkind = "overlay"'))
    assert {node.roles for node in overlay.nodes} == {("overlay",)}
    assert parse_deployment(dump_deployment(overlay)) == overlay


@pytest.mark.parametrize(
    ("kind", "role", "problem"),
    [
        ("overlay", '"sequencer"', 'of kind overlay has nodes with the roles overlay; .* for kind = "sequencer"'),
        ("sequencer", '"overlay"', 'the role overlay, which is for kind = "overlay"'),
        ("sequencer", "", "this one has no role"),
        ("mesh", '"sequencer"', "mesh"),
    ],
)
def test_a_deployment_is_of_one_kind(kind: str, role: str, problem: str) -> None:
    text = STAR.replace("version = 1", f'version = 1\nkind = "{kind}"')
    with pytest.raises(FormatError, match=problem):
        parse_deployment(text.replace('name = "eu-1"', f'name = "eu-1"\nroles = [{role}]', 1))


names = st.text("abcdefghij-", min_size=1, max_size=8)


@given(st.lists(names, min_size=1, max_size=5, unique=True), st.lists(names, max_size=4, unique=True), st.data())
def test_what_is_dumped_is_read_back_equal(nodes: list[str], topics: list[str], data: st.DataObject) -> None:
    deployment = Deployment(
        version=1,
        name=data.draw(st.text(max_size=5)),
        regions=(Region("eu"), Region("us")),
        round_trip_ms={"eu us": data.draw(st.floats(0, 500))},
        nodes=tuple(
            NodeSpec(name, region="eu", parent=None if i == 0 else nodes[data.draw(st.integers(0, i - 1))])
            for i, name in enumerate(nodes)
        ),
        topics=tuple(TopicSpec(name, home=data.draw(st.sampled_from(nodes))) for name in topics),
    )
    assert parse_deployment(dump_deployment(deployment)) == deployment


@pytest.mark.parametrize("code", [*range(0x21), 0x7F, 0x85, 0x2028])
def test_a_name_with_odd_characters_is_read_back(code: int) -> None:
    deployment = Deployment(version=1, name=f"a{chr(code)}b")
    assert parse_deployment(dump_deployment(deployment)).name == deployment.name
