"""The deployment file: what is written is read back, and every mistake is told in one line with its place."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.errors import FormatError
from unisono.model.address import endpoint, host_port
from unisono.model.deployment import Deployment, check_inhabited, dump_deployment, load_deployment, parse_deployment
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
        (('"eu us" = 80.5', '"eu us" = nan'), "round_trip_ms.eu us: nan is no number"),
        (('"eu us" = 80.5', '"eu us" = -1.0'), "round_trip_ms.eu us: -1.0 is no time to travel"),
        (("version = 1", "version = 1\nmembership.replicas = 9"), "membership.replicas: .*1 to 5 copies, not 9"),
        (("version = 1", 'version = 1\narchive.servers = ["n:4222"]'), "archive.servers: 'n:4222': write nats://"),
        (('name = "trades"', 'name = "tra des"'), "'tra des'"),
        (('name = "eu-1"', 'name = "hub"'), "twice"),
        (('name = "trades"', 'name = "trades"\ncolour = "red"'), "colour"),
        (("[[topics]]", "[[topics"), "line"),
        (("[[topics]]", '[archive]\nstream = "a.b"\n[[topics]]'), "one word"),
        (("[[topics]]", '[archive]\nstream = "a"\n[[topics]]'), "keeps no streams"),
        (('name = "eu-1"', 'name = "../eu"'), "no name for a node"),
        (('parent = "hub"', 'parent = "hub"\nlisten = "7474"'), r"nodes\.eu-1\.listen: '7474' is not host:port"),
        (('parent = "hub"', 'parent = "hub"\nlisten = "h:99999"'), r"nodes\.eu-1\.listen: .*ports end at 65535"),
        (('parent = "hub"', 'parent = "hub"\nstandby = "::1:7"'), r"nodes\.eu-1\.standby: .*in brackets"),
        (('parent = "hub"', 'parent = "hub"\nobserve = "yes"'), r"nodes\.eu-1\.observe: 'yes' is neither"),
        (("version = 1", 'version = 1\nname = ""'), "name: is empty"),
        (("version = 1", 'version = 1\nbroker.kind = "nats"'), r"broker\.servers: .* needs them"),
        (("version = 1", 'version = 1\nbroker = { kind = "nats", servers = ["n:4222"] }'), "'n:4222': write nats://"),
        (
            ("version = 1", 'version = 1\nname = "my shop"\nbroker = { kind = "nats", servers = ["nats://n:1"] }'),
            "'my shop' stands in subjects of NATS",
        ),
    ],
)
def test_a_mistake_is_told_in_one_line(edit: tuple[str, str], problem: str) -> None:
    with pytest.raises(Exception, match=problem) as caught:
        parse_deployment(STAR.replace(*edit))
    assert "\n" not in str(caught.value)


NODE = '[[nodes]]\nname = "{}"\nlisten = "{}"\n{}\n'
BOTH = 'roles = ["sequencer", "broker"]'


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        (("h:7474", ""), ("h:7474", ""), r"nodes\.b\.listen: port 7474 of h is taken by nodes\.a\.listen"),
        (("h:7474", ""), ("h:8474", ""), r"nodes\.b\.listen: port 8474 of h is taken by nodes\.a\.observe"),
        (("h:7474", BOTH), ("h:7475", ""), "port 7475 of h is taken by the embedded broker of a"),
        (("0.0.0.0:1", 'advertise = "h:7474"'), ("0.0.0.0:1", 'advertise = "h:7474"'), r"nodes\.b\.advertise: port"),
        (("h:7474", ""), ("g:7474", ""), ""),
        (("0.0.0.0:7474", 'advertise = "h:1"'), ("0.0.0.0:7474", 'advertise = "h:2"'), ""),
        (("h:0", ""), ("h:0", ""), ""),
        (("h:7474", BOTH), ("h:7476", ""), ""),
    ],
)
def test_no_two_things_listen_at_one_place(first: tuple[str, str], second: tuple[str, str], problem: str) -> None:
    text = "version = 1\n" + NODE.format("a", *first) + NODE.format("b", *second) + 'parent = "a"\n'
    if not problem:
        assert len(parse_deployment(text).nodes) == 2
        return
    with pytest.raises(FormatError, match=problem):
        parse_deployment(text)


def test_a_file_without_nodes_or_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="nodes: deployment 'unisono' has none"):
        check_inhabited(parse_deployment("version = 1"))
    (tmp_path / "d.toml").write_bytes(b"\x00\xff\xfe")
    with pytest.raises(FormatError, match=r"d\.toml: not a text file"):
        load_deployment(tmp_path / "d.toml")


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
        name=data.draw(st.text(min_size=1, max_size=5)),
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
    deployment = Deployment(version=1, name=f"a{chr(code)}b", nodes=(NodeSpec("n"),))
    assert parse_deployment(dump_deployment(deployment)).name == deployment.name


@pytest.mark.parametrize("text", ["127.0.0.1:7474", "[::1]:7474", "eu.example.com:0"])
def test_an_address_is_shown_as_it_is_written(text: str) -> None:
    assert host_port(*endpoint(text)) == text
