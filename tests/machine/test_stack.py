"""Blocks stack in any order, and a stack is a machine."""

import pytest

from tests.machine.toys import Counting, Layer, Ledger
from unisono.machine import (
    Broadcast,
    Deliver,
    DurableMachine,
    Fired,
    Gap,
    Heard,
    Join,
    Joined,
    Layered,
    Leave,
    Publish,
    Refuse,
    Restarted,
    Send,
    SetTimer,
    Stack,
    Subscribe,
    Unsubscribe,
)
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.fifo.machine import FifoConfig, FifoMachine, Numbered

T, NOW = Topic(3), Micros(50)


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_two_blocks_stack_in_both_orders(order: tuple[str, str]) -> None:
    lower, upper = order
    stack = Stack(**{lower: Layer(lower), upper: Layer(upper)})
    [down] = stack.handle(Publish(T, "hello"), NOW)
    assert down == Broadcast(T, [lower, [upper, "hello"]])
    assert stack.handle(Heard(T, down.message), NOW) == [Deliver(Heard(T, "hello"))]


def test_control_marks_survive_the_layers() -> None:
    stack = Stack(a=Layer("a"), b=Layer("b"))
    [down] = stack.handle(Publish(T, "hello", control=True), NOW)
    assert isinstance(down, Broadcast)
    assert down.control
    assert stack.handle(Heard(T, down.message, control=True), NOW) == [Deliver(Heard(T, "hello", control=True))]


def test_subscriptions_go_down_and_come_back_up() -> None:
    stack = Stack(a=Layer("a"), b=Layer("b"))
    assert stack.handle(Subscribe((T, Topic(4))), NOW) == [Join(T), Join(Topic(4))]
    assert stack.handle(Joined(T), NOW) == [Deliver(Joined(T))]
    assert stack.handle(Unsubscribe((T,)), NOW) == [Leave(T)]


@pytest.mark.parametrize("fifo_first", [True, False])
def test_a_real_protocol_stacks_with_a_toy_both_ways(fifo_first: bool) -> None:
    def build(name: str) -> Stack:
        fifo = FifoMachine(Address(name), FifoConfig(deadline_us=Micros(1_000)))
        return Stack(fifo=fifo, toy=Layer("toy")) if fifo_first else Stack(toy=Layer("toy"), fifo=fifo)

    here, there = build("here"), build("there")
    there.handle(Subscribe((T,)), NOW)
    there.handle(Joined(T), NOW)
    sent = [
        effect.message
        for text in ("one", "two", "three")
        for effect in here.handle(Publish(T, text), NOW)
        if isinstance(effect, Broadcast)
    ]
    assert there.handle(Heard(T, sent[1]), NOW) == [SetTimer("fifo/here", Micros(1_050))]
    delivered = [item.item for item in there.handle(Heard(T, sent[0]), NOW) if isinstance(item, Deliver)]
    assert delivered == [Heard(T, "one"), Heard(T, "two")]


def test_timers_and_peer_messages_find_their_layer() -> None:
    stack = Stack(fifo=FifoMachine(Address("me")), count=Counting(Address("peer")))
    sends = [effect for effect in stack.handle(Publish(T, "x"), NOW) if isinstance(effect, Send)]
    assert sends == [Send(Address("peer"), Layered("count", 1))]
    assert Deliver(5) in stack.handle(Layered("count", 5), NOW)

    stack = Stack(low=Layer("low"), fifo=FifoMachine(Address("me")))
    stack.handle(Subscribe((T,)), NOW)
    stack.handle(Heard(T, ["low", Numbered(Address("p"), 2, {T: 1}, "late")]), NOW)
    given_up = [e.item for e in stack.handle(Fired("fifo/p"), NOW) if isinstance(e, Deliver)]
    assert given_up == [Gap(T, 1, 1, "publisher p: not heard in time"), Heard(T, "late")]


def test_unknown_layers_are_refused() -> None:
    stack = Stack(a=Layer("a"))
    assert isinstance(stack.handle(Layered("attic", 1), NOW)[0], Refuse)
    assert isinstance(stack.handle(Fired("attic/1"), NOW)[0], Refuse)


def test_a_stack_is_durable_if_all_its_layers_are() -> None:
    assert isinstance(Stack(a=Ledger("a"), b=Ledger("b")), DurableMachine)
    assert not isinstance(Stack(a=Ledger("a"), b=Layer("b")), DurableMachine)
    assert not isinstance(Stack(a=Layer("a"), b=Ledger("b")), DurableMachine)


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_every_layer_is_restarted_the_lowest_first(order: tuple[str, str]) -> None:
    lower, upper = order
    stack = Stack(**{lower: Ledger(lower), upper: Ledger(upper)})
    stack.handle(Subscribe((T,)), NOW)
    effects = stack.handle(Restarted(), NOW)
    assert [effect.key for effect in effects if isinstance(effect, SetTimer)] == [f"{lower}/wake", f"{upper}/wake"]
    assert Join(T) in effects


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_both_layers_of_a_restored_stack_know_what_they_knew(order: tuple[str, str]) -> None:
    lower, upper = order

    def build() -> Stack:
        return Stack(**{lower: Ledger(lower), upper: Ledger(upper)})

    before = build()
    before.handle(Subscribe((T,)), NOW)
    [down] = [e.message for e in before.handle(Publish(T, "one"), NOW) if isinstance(e, Broadcast)]
    assert down == [lower, 1, [upper, 1, "one"]]
    assert Deliver(Heard(T, "one")) in before.handle(Heard(T, down), NOW)
    after = build()
    after.restore(before.snapshot())
    assert list(before.snapshot()) == [lower, upper]
    assert not any(isinstance(e, Deliver) for e in after.handle(Heard(T, down), NOW))
    assert not any(isinstance(e, Deliver) for e in after.handle(Heard(T, [lower, 2, [upper, 1, "one"]]), NOW))
    [down] = [e.message for e in after.handle(Publish(T, "two"), NOW) if isinstance(e, Broadcast)]
    assert down == [lower, 2, [upper, 2, "two"]]
