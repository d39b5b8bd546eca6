"""Messages in a row for a handler or a loop: each comes once, and none waits behind a slow one."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

import quivermq
from quivermq.client.shared.delivery_run import RUN_MAX, DeliveryRun, RunSize
from quivermq.client.shared.leased_message import LeasedFields, LeasedMessage
from quivermq.client.shared.leases import Lease
from quivermq.client.shared.prefetch_buffer import PrefetchBuffer
from quivermq.errors import InvalidRequest
from tests.client.group_stand_in import GroupStandIn
from tests.client.test_fork_safety import in_child
from tests.client.test_prefetch_buffer import lease
from tests.client.test_subscription import done, extensions, until

LEASE = Lease("t", b"id", "g", 0, 7, print)
MANY = 10_000
INSIDE = 4_777
"""In the midst of a run: those of a fast machine begin at multiples of 500."""


def messages(first: int, count: int, held: Lease = LEASE) -> list[LeasedFields]:
    return [
        LeasedMessage("t", 0, at, None, b"", {}, 0, 0, 1, held)
        for at in range(first, first + count)
    ]


@given(st.integers(0, 5), st.integers(1, 9), st.lists(st.sampled_from(["take", "look", "back"])))
def test_what_is_done_is_what_was_begun_but_for_the_message_in_hand(
    first: int, count: int, steps: list[str]
) -> None:
    run, back, taken = DeliveryRun(messages(first, count)), deque[LeasedFields](), 0
    for step in steps:
        if step == "take" and run.rest:
            assert run.rest.popleft().offset == first + taken
            taken += 1
        elif step == "back":
            run.take_back(back)
            count = taken
        assert run.done_until() == first + max(taken - 1, 0)
        assert run.is_long == (taken < count)
    assert [*back] == messages(first + taken, len(back))
    run.rest.clear()
    run.is_over = True
    assert run.done_until() == run.end == first + (taken if back else count)


def test_a_handler_that_takes_nothing_between_two_looks_is_stuck() -> None:
    run = DeliveryRun(messages(0, 3))
    assert not run.is_stuck()  # it may not even have begun
    run.rest.popleft()
    assert not run.is_stuck()
    assert run.is_stuck()


def test_a_message_is_either_handled_or_taken_back() -> None:
    for _ in range(30):
        run, back, handled = DeliveryRun(messages(0, 3_000)), deque[LeasedFields](), []
        begun = threading.Event()

        def handle(
            run: DeliveryRun = run,
            handled: list[LeasedFields] = handled,
            begun: threading.Event = begun,
        ) -> None:
            while run.rest:
                try:
                    handled.append(run.rest.popleft())
                except IndexError:
                    return
                begun.set()

        handler = threading.Thread(target=handle)
        handler.start()
        assert begun.wait(10)
        run.take_back(back)
        handler.join()
        assert [*handled, *back] == messages(0, 3_000)
        assert run.end == len(handled)


def test_a_run_is_as_long_as_its_handler_is_fast() -> None:
    size = RunSize()
    assert size.messages == 1
    size.adapt(1, 0.000_1)
    assert size.messages == 10
    size.adapt(10, 0.000_002)
    assert size.messages == RUN_MAX
    size.adapt(RUN_MAX, 5.0)
    assert size.messages == 1


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 5), st.booleans()), max_size=6),
       st.lists(st.integers(1, 6), min_size=40, max_size=40))  # fmt: skip
def test_runs_have_messages_of_one_lease_that_follow_each_other(
    parts: list[tuple[int, int, bool]], sizes: list[int]
) -> None:
    leases = {token: lease(token) for token in (1, 2, 3)}
    held = {leases[1], leases[2]}
    buffer = PrefetchBuffer[LeasedFields](LeasedMessage, held)
    wanted, at = [], 0
    for token, count, has_gap in parts:
        at += has_gap
        some = messages(at, count, leases[token])
        at += count
        buffer.made.extend(some)
        wanted += some if token < 3 else []  # the third lease has ended
    found = []
    for size in sizes:
        if (run := buffer.take_run(size)) is None:
            break
        assert 1 <= len(run.rest) <= size
        assert [*run.rest] == messages(run.acknowledged, len(run.rest), run.lease)
        found += run.rest
    assert found == wanted


@pytest.fixture
def stand_in() -> Iterator[GroupStandIn]:
    with GroupStandIn() as started:
        yield started


@pytest.fixture
def stored(real: quivermq.Client, topic: str) -> str:
    """A topic with messages in batches, each of which is its number."""
    real.produce_many(topic, [b"%d" % number for number in range(MANY)])
    return topic


def blocking_at(number: int, seen: list[int]) -> tuple[Callable[..., None], threading.Event]:
    """A handler that is fast but for one message, which it has in hand until the event is set."""
    go_on = threading.Event()

    def handle(message: quivermq.LeasedMessage) -> None:
        seen.append(int(message.value))
        if int(message.value) == number:
            assert go_on.wait(30)

    return handle, go_on


def test_what_is_done_is_acknowledged_while_the_handler_has_the_next_in_hand(
    real: quivermq.Client, stored: str
) -> None:
    seen: list[int] = []
    handle, go_on = blocking_at(INSIDE, seen)
    with real.subscribe(stored, group="g", handler=handle, prefetch=MANY):
        until(lambda: done(real, stored) == INSIDE)
        assert len(seen) == INSIDE + 1
        go_on.set()
        until(lambda: done(real, stored) == MANY)
    assert seen == [*range(MANY)]


def test_no_message_waits_behind_a_slow_one_while_another_thread_has_time(
    real: quivermq.Client, stored: str
) -> None:
    seen: list[int] = []
    handle, go_on = blocking_at(INSIDE, seen)
    with real.subscribe(stored, group="g", handler=handle, prefetch=MANY, concurrency=2):
        until(lambda: done(real, stored) == MANY - 1)
        go_on.set()
        until(lambda: done(real, stored) == MANY)
    assert sorted(seen) == [*range(MANY)]


def test_a_subscription_that_stops_ends_behind_the_message_in_hand(
    real: quivermq.Client, stored: str
) -> None:
    seen: list[int] = []
    has_begun, is_stopped, go_on = threading.Event(), threading.Event(), threading.Event()

    def handle(message: quivermq.LeasedMessage) -> None:
        seen.append(int(message.value))
        if seen[-1] == 0:
            assert has_begun.wait(30)
        if seen[-1] == INSIDE:
            subscription.stop()
            is_stopped.set()
            assert go_on.wait(30)

    subscription = real.subscribe(stored, group="g", handler=handle, prefetch=2 * MANY)
    has_begun.set()
    assert is_stopped.wait(30)
    # What it had not begun is there for others.
    others: list[int] = []
    while len(others) < MANY - INSIDE - 1:
        found = real.poll(stored, group="g", wait=10)
        assert {message.delivery_count for message in found} == {1}
        others += [int(message.value) for message in found]
    go_on.set()
    subscription.close()
    assert seen == [*range(INSIDE + 1)]
    assert sorted(others) == [*range(INSIDE + 1, MANY)]
    assert done(real, stored) == INSIDE + 1


def test_a_run_that_is_taken_while_the_subscription_stops_is_given_back(
    real: quivermq.Client, stored: str
) -> None:
    with real.subscribe(stored, group="g", prefetch=2 * MANY) as subscription:
        prefetcher = subscription._prefetcher
        until(lambda: prefetcher._held() == MANY)
        take_run = prefetcher._buffer.take_run

        def stop_and_take(most: int) -> DeliveryRun | None:
            """The event loop gives back what waits when this run is not known yet."""
            run = take_run(most)
            subscription.stop()
            until(lambda: prefetcher.is_closing and prefetcher._buffer.is_empty)
            return run

        prefetcher._buffer.take_run = stop_and_take  # type: ignore[method-assign]
        assert prefetcher.take_run(0, 100) is None
        assert prefetcher.take_run(0, 100) is None
        until(lambda: prefetcher._held() == 0)


def test_a_handler_with_several_messages_is_looked_at_until_it_has_one(
    real: quivermq.Client, topic: str
) -> None:
    with real.subscribe(topic, group="g", handler=print) as subscription:
        run = DeliveryRun(messages(0, 3))
        run.rest.popleft()
        subscription._prefetcher.in_hand.runs[1] = run
        subscription._outbox.wake()
        until(lambda: not run.rest)


def test_a_message_that_fails_in_a_run_fails_alone(real: quivermq.Client, stored: str) -> None:
    seen: Counter[int] = Counter()

    def handle(message: quivermq.LeasedMessage) -> None:
        number = int(message.value)
        seen[number] += 1
        if number % 1_000 == 999 and message.delivery_count == 1:
            raise ValueError(number)

    with real.subscribe(stored, group="g", handler=handle, prefetch=MANY):
        until(lambda: done(real, stored) == MANY, 30.0)
    assert seen == Counter({number: 1 + (number % 1_000 == 999) for number in range(MANY)})


def test_a_loop_has_every_message_once_and_in_order(real: quivermq.Client, stored: str) -> None:
    seen = []
    with real.subscribe(stored, group="g", prefetch=MANY) as subscription:
        for message in subscription:
            seen.append(int(message.value))
            subscription.ack(message)
            if len(seen) == MANY:
                break
    assert seen == [*range(MANY)]
    assert done(real, stored) == MANY


def test_a_loop_acknowledges_nothing_by_itself(real: quivermq.Client, stored: str) -> None:
    seen = 0
    with real.subscribe(stored, group="g", prefetch=MANY) as subscription:
        for message in subscription:
            seen += 1
            if seen % 2:
                subscription.ack(message)
            if seen % 1_000 == 0:
                # The event loop looks at what the loop is at.
                subscription.flush()
                assert done(real, stored) == seen // 2
            if seen == MANY // 2:
                break


def test_a_loop_that_is_left_gives_back_what_it_has_not_had(
    real: quivermq.Client, stored: str
) -> None:
    with real.subscribe(stored, group="g", prefetch=2 * MANY) as subscription:
        until(lambda: subscription._prefetcher._held() == MANY)
        first = [int(message.value) for message in islice(subscription, INSIDE)]
        second = [int(message.value) for message in islice(subscription, MANY - INSIDE)]
        assert first + second == [*range(MANY)]


def test_a_loop_that_is_left_has_its_last_message_in_hand(
    client: quivermq.Client, stand_in: GroupStandIn
) -> None:
    client.produce("t", b"v")
    with client.subscribe("t", group="g", visibility=0.2) as subscription:
        message = next(iter(subscription))
        until(lambda: extensions(stand_in) >= 3)
        message.ack()
        assert stand_in.lot().done == {0}


def test_a_loop_does_not_go_on_in_a_child(real: quivermq.Client, stored: str) -> None:
    with real.subscribe(stored, group="g", prefetch=MANY) as subscription:
        messages = iter(subscription)
        for _ in range(INSIDE):
            next(messages)

        def try_to_go_on() -> str:
            with pytest.raises(InvalidRequest, match="forked"):
                next(messages)
            return "refused"

        assert in_child(try_to_go_on) == "refused"
        assert int(next(messages).value) == INSIDE
