"""What strangers and clients try against a node, over sockets. Each attack has the code under which it is refused."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from tests.runtime.hostile.world import HUB, ME, SMALL, Attacker, Target, attacker, broker_frame, broker_place
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.groups.messages import Commit, Enlist, Portion
from unisono.protocols.naming import messages as naming
from unisono.protocols.sequencer.messages import Ask, Collect, Creates, Install, Renew, Update, Wanted
from unisono.runtime.brokers.embedded import server as wire
from unisono.runtime.links import control
from unisono.runtime.links.archive_messages import Fetch, Follow, Locate
from unisono.runtime.links.frames import LETTERS_MAX, Hello, Letter, Proof, encode_frame
from unisono.structures.hosting import Forget
from unisono.structures.sessions import Frame, Handled

Attack = Callable[[Target], Awaitable[None]]


class Case(NamedTuple):
    name: str
    code: str
    attack: Attack


CASES: list[Case] = []


def refused_as(code: str) -> Callable[[Attack], Attack]:
    def enlist(attack: Attack) -> Attack:
        CASES.append(Case(attack.__name__, code, attack))
        return attack

    return enlist


async def told(target: Target, code: str, *frames: bytes) -> None:
    """Sends this before any hello, and is told why it is not taken."""
    async with attacker(target.place) as one:
        for frame in frames:
            await one.send(frame)
        assert await one.is_told(code)


async def some_looks(target: Target, code: str, one: Attacker | None = None, again: bytes = b"") -> None:
    """Until something is refused with this code, saying `again` meanwhile; that it was is for the test to say."""
    before = await target.refused(code)
    for _ in range(50):
        if one is not None:
            await asyncio.wait_for(one.send(again), 20)
        if await target.refused(code) > before:
            return


async def told_inside(target: Target, code: str, *messages: object, address: str = ME) -> None:
    """Says this as a client that was let in."""
    async with attacker(target.place) as one:
        await one.enter(address)
        await one.say(*messages, control.AskReport(Address(address)))
        assert await one.is_told(code)


# before the hello


@refused_as("hello-size")
async def a_frame_of_eight_megabytes_before_the_hello(target: Target) -> None:
    await told(target, "hello-size", (8 << 20).to_bytes(4, "big"))


@refused_as("hello-size")
async def a_length_at_the_end_of_32_bits(target: Target) -> None:
    await told(target, "hello-size", b"\xff\xff\xff\xff")


@refused_as("protocol")
async def bytes_of_another_protocol(target: Target) -> None:
    await told(target, "hello-size", b"GET / HTTP/1.1\r\n\r\n")
    await told(target, "protocol", (4).to_bytes(4, "big") + b"\xc1\xc1\xc1\xc1")


@refused_as("protocol")
async def an_empty_frame(target: Target) -> None:
    await told(target, "protocol", (0).to_bytes(4, "big"))


@refused_as("protocol")
async def deep_nesting_before_the_hello(target: Target) -> None:
    body = b"\x91" * 3_000
    await told(target, "protocol", len(body).to_bytes(4, "big") + body)


@refused_as("protocol")
async def letters_before_the_hello(target: Target) -> None:
    await told(target, "protocol", encode_frame([Letter(HUB, control.AskDeployment(ME))]))


@refused_as("hello-first")
async def a_proof_of_nothing(target: Target) -> None:
    await told(target, "hello-first", encode_frame(Proof(b"x" * 32)))


@refused_as("protocol")
async def a_hello_with_a_tag_that_there_is_not(target: Target) -> None:
    await told(target, "protocol", encode_frame({"type": "Hullo", "kind": "client", "addresses": ["mallory"]}))


@refused_as("protocol")
async def a_hello_that_is_not_text(target: Target) -> None:
    frame = encode_frame(Hello("client", (Address("mallorx"),))).replace(b"mallorx", b"mallor\xff")
    await told(target, "protocol", frame)


@refused_as("hello-late")
async def a_connection_that_says_nothing(target: Target) -> None:
    await told(target, "hello-late")


@refused_as("hello-late")
async def a_hello_one_byte_at_a_time(target: Target) -> None:
    async with attacker(target.place) as one:
        for byte in encode_frame(Hello("client", (ME,)))[:-1]:
            await one.send(bytes([byte]))
        assert await one.is_told("hello-late")


@refused_as("hello-late")
async def more_silent_connections_than_there_is_room_for(target: Target) -> None:
    silent = [Attacker(*await asyncio.open_connection(*target.place)) for _ in range(3 * SMALL.connections_unknown_max)]
    assert await silent[0].is_told("hello-late")
    await target.serves()
    for one in silent:
        one.close()


@refused_as("connections")
async def more_connections_than_there_is_room_for(target: Target) -> None:
    many = []
    for number in range(SMALL.connections_max - 1):
        one = Attacker(*await asyncio.open_connection(*target.place))
        many.append(one)
        await one.hello(f"m{number}")
        await one.body()
    extra = [Attacker(*await asyncio.open_connection(*target.place)) for _ in range(5)]
    assert await extra[-1].is_told("connections")
    for one in (*many, *extra):
        one.close()
    while len(target.node.links._accepted) > SMALL.connections_max // 2:
        await asyncio.sleep(0.01)


# in the hello


@refused_as("hello-size")
async def a_hello_with_700_000_addresses(target: Target) -> None:
    async with attacker(target.place) as one:
        await one.send(encode_frame(Hello("client", tuple(Address(f"m{i}") for i in range(700_000)))))
        while await one.body() is not None:  # with so much unread, the last words may be lost with the connection
            pass


@refused_as("address")
async def a_hello_with_a_few_addresses_too_many(target: Target) -> None:
    addresses = tuple(Address(f"m{i}") for i in range(SMALL.hello_addresses_max + 1))
    await told(target, "address", encode_frame(Hello("client", addresses)))


@refused_as("address")
async def a_hello_without_an_address(target: Target) -> None:
    await told(target, "address", encode_frame(Hello("client", ())))


@refused_as("address")
async def a_client_with_the_name_of_the_node(target: Target) -> None:
    await told(target, "address", encode_frame(Hello("client", (HUB,))))


@refused_as("address")
async def a_client_with_the_name_of_a_part_of_another(target: Target) -> None:
    await told(target, "address", encode_frame(Hello("client", (Address("victim/1"),))))


@refused_as("address")
async def a_node_that_the_deployment_does_not_know(target: Target) -> None:
    await told(target, "address", encode_frame(Hello("node", (ME,))))


@refused_as("deployment")
async def a_client_of_another_deployment(target: Target) -> None:
    await told(target, "deployment", encode_frame(Hello("client", (ME,), deployment="another")))


@refused_as("version")
async def a_client_of_another_version(target: Target) -> None:
    await told(target, "version", encode_frame(Hello("client", (ME,), protocols=(98, 99))))


@refused_as("version")
async def versions_from_the_wrong_end(target: Target) -> None:
    await told(target, "version", encode_frame(Hello("client", (ME,), protocols=(2**63 - 1, -(2**63)))))


@refused_as("address-taken")
async def another_clients_address_while_it_is_connected(target: Target) -> None:
    async with attacker(target.place) as victim:
        await victim.enter("victim", secret=b"its own")
        await told(target, "address-taken", encode_frame(Hello("client", (Address("victim"),))))
        await told(target, "address-taken", encode_frame(Hello("client", (Address("victim"),), secret=b"a guess")))
        await victim.say(control.AskReport(Address("victim")))
        assert await victim.body() is not None


@refused_as("address-taken")
async def another_clients_address_while_it_is_away(target: Target) -> None:
    async with attacker(target.place) as victim:
        await victim.enter("victim", secret=b"its own")
    await told(target, "address-taken", encode_frame(Hello("client", (Address("victim"),), secret=b"a guess")))
    async with attacker(target.place) as victim:
        await victim.enter("victim", secret=b"its own")


@refused_as("address-taken")
async def a_secret_of_nothing_for_a_client_that_never_showed_one(target: Target) -> None:
    async with attacker(target.place) as victim:
        await victim.enter("victim")
        await told(target, "address-taken", encode_frame(Hello("client", (Address("victim"),))))


# after the hello


@refused_as("frame-size")
async def a_frame_longer_than_allowed(target: Target) -> None:
    async with attacker(target.place) as one:
        await one.enter()
        await one.send((SMALL.frame_bytes_max + 1).to_bytes(4, "big"))
        assert await one.is_told("frame-size")


@refused_as("protocol")
async def a_second_hello(target: Target) -> None:
    async with attacker(target.place) as one:
        await one.enter()
        await one.hello()
        assert await one.is_told("protocol")


@refused_as("protocol")
async def deep_nesting_in_a_letter(target: Target) -> None:
    async with attacker(target.place) as one:
        await one.enter()
        body = b"\x91" * 100_000
        await one.send(len(body).to_bytes(4, "big") + body)
        assert await one.is_told("protocol")


@refused_as("protocol")
async def a_message_with_a_tag_that_there_is_not(target: Target) -> None:
    await told_inside(target, "protocol", {"type": "Explode", "client": ME})


@refused_as("protocol")
async def a_message_that_only_machines_make(target: Target) -> None:
    await told_inside(target, "protocol", {"type": "Turn", "creates": []})


@refused_as("protocol")
async def a_message_with_a_field_of_the_wrong_type(target: Target) -> None:
    await told_inside(target, "protocol", {"type": "Open", "client": ME, "request": "one", "names": []})


@refused_as("letters")
async def more_letters_in_a_frame_than_allowed(target: Target) -> None:
    await told_inside(target, "letters", *[control.AskDeployment(ME)] * (LETTERS_MAX + 1))


@refused_as("forged")
async def a_message_in_the_name_of_another_client(target: Target) -> None:
    await told_inside(target, "forged", naming.OpenTopics(Address("victim"), 1, ("trades",)))


@refused_as("forged")
async def a_goodbye_in_the_name_of_another_client(target: Target) -> None:
    await told_inside(target, "forged", Forget(Address("victim/1")))


@refused_as("protocol")
async def a_frame_in_the_name_of_the_node(target: Target) -> None:
    await told_inside(target, "protocol", Frame(HUB, 1, naming.TopicNamed(Topic(1), "trades")))


@refused_as("protocol")
async def an_acknowledgement_in_the_name_of_the_node(target: Target) -> None:
    await told_inside(target, "protocol", Handled(HUB, 7))


@refused_as("forged")
async def a_registration_of_somebody_elses_stream(target: Target) -> None:
    await told_inside(target, "forged", Update(Address("victim/1"), 9, (Topic(1),), ()))


# numbers


def _number(name: str, message: object) -> None:
    async def attack(target: Target) -> None:
        await told_inside(target, "range", message)

    CASES.append(Case(name, "range", attack))


_number("a_request_at_the_end_of_64_bits", Creates(ME, (Wanted(Topic(1), 2**64 - 1),)))
_number("a_request_whose_successor_does_not_fit", Creates(ME, (Wanted(Topic(1), 2**63 - 1),)))
_number("a_count_that_uses_up_all_numbers", Creates(ME, (Wanted(Topic(1), 1, 2**62),)))
_number("a_count_of_nothing", Creates(ME, (Wanted(Topic(1), 1, 0),)))
_number("an_acknowledgement_of_everything", Creates(ME, (Wanted(Topic(1), 1, 1, 2**64 - 1),)))
_number("a_negative_request", Creates(ME, (Wanted(Topic(1), -1),)))
_number("a_topic_at_the_end_of_64_bits", Ask(ME, Topic(2**64 - 1), 1))
_number("a_number_asked_for_at_the_end_of_64_bits", Ask(ME, Topic(1), 2**64 - 1))
_number("a_version_at_the_end_of_64_bits", Install(ME, 2**64 - 1, (Topic(1),), ()))
_number("numbers_left_at_the_end_of_64_bits", Collect(ME, 1, (Topic(1),), (), (), {Topic(2): 2**64 - 1}))
_number("a_moment_at_the_end_of_64_bits", Renew(ME, (Topic(1),), Micros(2**63 - 1)))
_number("a_reading_of_a_distance_at_the_end_of_64_bits", control.ClientAt(ME, "eu", {"eu": 2**64 - 1}))
_number("an_archive_position_at_the_end_of_64_bits", Fetch(ME, 1, 2**64 - 1, ("trades",)))
_number("an_archive_number_below_zero", Locate(ME, 1, "trades", -5))
_number("an_epoch_at_the_end_of_64_bits", Commit(ME, 1, "group", ME, (Portion({0: 2**64 - 1}, {"trades": 1}),)))
_number("an_open_request_below_zero", naming.OpenTopics(ME, -1, ("trades",)))


# how much


@refused_as("watches")
async def patterns_without_end(target: Target) -> None:
    await told_inside(target, "watches", *[control.Watch(ME, f"x{i}.*") for i in range(1_000)])


@refused_as("watches")
async def patterns_of_many_streams_of_one_client(target: Target) -> None:
    await told_inside(target, "watches", *[control.Watch(Address(f"{ME}/{i}"), "x.*") for i in range(1_000)])


@refused_as("topics")
async def topics_without_end(target: Target) -> None:
    names = tuple(f"t{i}" for i in range(1_000))
    await told_inside(target, "topics", naming.OpenTopics(ME, 1, names))


@refused_as("topics")
async def topics_one_by_one(target: Target) -> None:
    await told_inside(target, "topics", *[naming.OpenTopics(ME, i, (f"t{i}",)) for i in range(1_000)])


@refused_as("topics")
async def a_subscription_to_more_topics_than_allowed(target: Target) -> None:
    topics = tuple(Topic(i) for i in range(1_000))
    await told_inside(target, "topics", Collect(Address(f"{ME}/1"), 1, (Topic(1),), topics, topics))


@refused_as("subscriptions")
async def streams_without_end(target: Target) -> None:
    asks = [Ask(Address(f"{ME}/{i}"), Topic(1), 1) for i in range(1_000)]
    await told_inside(target, "subscriptions", *asks)


@refused_as("requests")
async def questions_to_the_archive_without_end(target: Target) -> None:
    await told_inside(target, "requests", *[Fetch(ME, i, 0, ("trades",), seal=True) for i in range(2_000)])


@refused_as("requests")
async def groups_without_end(target: Target) -> None:
    await told_inside(target, "requests", *[Enlist(ME, i, f"group{i}", ME) for i in range(1_000)])


@refused_as("requests")
async def topics_to_follow_that_there_are_not(target: Target) -> None:
    await told_inside(target, "requests", *[Follow(ME, i, (f"never{i}",)) for i in range(1_000)])


@refused_as("bytes")
async def answers_that_are_never_read(target: Target) -> None:
    async with attacker(target.place) as one:
        await one.enter()
        one.reader._limit = 1  # type: ignore[attr-defined]  # the transport stops reading
        before = await target.refused("bytes")
        names = tuple(f"t{i}" for i in range(40))  # once they are there, asking for them again has no pace
        while await target.refused("bytes") == before:
            await asyncio.wait_for(one.say(*[naming.OpenTopics(ME, i, names) for i in range(1_000)]), 20)


@refused_as("bytes")
async def frames_of_many_that_are_never_whole(target: Target) -> None:
    many = [Attacker(*await asyncio.open_connection(*target.place)) for _ in range(8)]
    for number, one in enumerate(many):
        await one.enter(f"m{number}")
        await one.send(SMALL.frame_bytes_max.to_bytes(4, "big") + bytes(SMALL.frame_bytes_max - 1))
    await some_looks(target, "bytes")
    for one in many:
        one.close()


# the embedded broker


async def told_by_broker(target: Target, code: str, *frames: bytes) -> None:
    async with attacker(broker_place(target)) as one:
        for frame in frames:
            await one.send(frame)
        assert await one.is_told(code)


@refused_as("hello-size")
async def a_long_frame_to_the_broker_before_the_greeting(target: Target) -> None:
    await told_by_broker(target, "hello-size", (8 << 20).to_bytes(4, "big"))


@refused_as("hello-first")
async def a_publication_to_the_broker_without_a_greeting(target: Target) -> None:
    group = wire.ItemGroup("trades", False, 1, msgspec.Raw(b"\xc0"))
    await told_by_broker(target, "hello-first", broker_frame(group))


@refused_as("hello-first")
async def two_greetings_to_the_broker(target: Target) -> None:
    await told_by_broker(target, "hello-first", broker_frame(wire.Greet("s"), wire.Greet("s")))


@refused_as("hello-late")
async def a_connection_to_the_broker_that_says_nothing(target: Target) -> None:
    await told_by_broker(target, "hello-late")


@refused_as("version")
async def a_greeting_of_another_version_to_the_broker(target: Target) -> None:
    await told_by_broker(target, "version", broker_frame(wire.Greet("s", version=99)))


@refused_as("topics")
async def channels_of_the_broker_without_end(target: Target) -> None:
    opens = [wire.OpenChannel(f"t{i}", False, i) for i in range(1_000)]
    await told_by_broker(target, "topics", broker_frame(wire.Greet("s")), broker_frame(*opens))


@refused_as("range")
async def a_count_of_items_at_the_end_of_64_bits(target: Target) -> None:
    group = wire.ItemGroup("trades", False, 2**64 - 1, msgspec.Raw(b"\xc0"))
    await told_by_broker(target, "range", broker_frame(wire.Greet("s")), broker_frame(group))


@refused_as("bytes")
async def a_frame_to_the_broker_that_is_never_whole(target: Target) -> None:
    frame = (wire.FRAME_BYTES_MAX).to_bytes(4, "big") + bytes(SMALL.bytes_max // 40)
    async with attacker(broker_place(target)) as one:
        await one.send(broker_frame(wire.Greet("s")))
        await some_looks(target, "bytes", one, frame)


@refused_as("bytes")
async def items_of_the_broker_that_many_do_not_read(target: Target) -> None:
    group = wire.ItemGroup("flood", False, 1, msgspec.Raw(msgspec.msgpack.encode(bytes(1 << 20))))
    many = [Attacker(*await asyncio.open_connection(*broker_place(target))) for _ in range(4)]
    for number, one in enumerate(many):
        await one.send(broker_frame(wire.Greet(f"s{number}"), wire.OpenChannel("flood", False, 1)))
        while b"opened" not in (await one.body() or b"opened"):
            pass
        one.reader._limit = 1  # type: ignore[attr-defined]  # the transport stops reading
    async with attacker(broker_place(target)) as publisher:
        await publisher.send(broker_frame(wire.Greet("p")))
        await some_looks(target, "bytes", publisher, broker_frame(group))
    for one in many:
        one.close()


@refused_as("protocol")
async def deep_nesting_to_the_broker(target: Target) -> None:
    body = b"\x91" * 100_000
    await told_by_broker(target, "protocol", broker_frame(wire.Greet("s")), len(body).to_bytes(4, "big") + body)


@refused_as("protocol")
async def text_that_is_none_to_the_broker(target: Target) -> None:
    frame = broker_frame(wire.OpenChannel("tradex", False, 1)).replace(b"tradex", b"trade\xff")
    await told_by_broker(target, "protocol", broker_frame(wire.Greet("s")), frame)
