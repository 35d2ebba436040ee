"""Who asked is known request by request, in whatever runs it was asked and answered."""

from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.runtime.client.publishing.topic_window import PendingRequests


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), max_size=12),
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20)), max_size=20),
)
def test_everybody_is_answered_once(asked: list[tuple[str, int]], answers: list[tuple[int, int]]) -> None:
    book: PendingRequests[str] = PendingRequests()
    waiting: dict[int, str] = {}
    first = 1
    for who, count in asked:
        book.put(first, who, count)
        waiting.update(dict.fromkeys(range(first, first + count), who))
        first += count
    for request, count in answers:
        told = {n: who for start, who, length in book.take(request, count) for n in range(start, start + length)}
        assert told == {n: waiting.pop(n) for n in range(request, request + count) if n in waiting}
        assert len(book) == len(waiting)
        assert sorted(book) == sorted(waiting)
