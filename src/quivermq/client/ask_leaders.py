"""Asks all leaders of a topic's partitions, until there is an answer for every partition."""

from collections.abc import Callable, Sequence

from quivermq.client.retry import Attempts
from quivermq.client.router import LeaderPartitions, Router
from quivermq.client.transport import Reply
from quivermq.errors import NotLeader, QuiverError, TopicNotFound
from quivermq.wire import proto

FailedAsk = tuple[LeaderPartitions, QuiverError]
"""The partitions that a broker was asked about, and how it failed."""


async def ask_leaders(
    router: Router,
    topic: str,
    partitions: Sequence[int] | None,
    request_to: Callable[[LeaderPartitions], proto.Request],
    attempts: Attempts,
    topic_id: bytes | None = None,
    failed: FailedAsk | None = None,
) -> list[tuple[LeaderPartitions, Reply]]:
    """The answers of the leaders of these partitions, or of all, each with its partitions.

    With an id, only of the topic that has it: `TopicNotFound` if it was created again. `failed` is
    a first attempt that was made elsewhere.
    """
    answers: list[tuple[LeaderPartitions, Reply]] = []
    left = partitions
    if failed is not None:
        await _recover(router, topic, topic_id, failed, attempts)
    if topic_id is not None:
        # It may have fewer partitions than the one that is asked for.
        await check_same(router, topic, topic_id, attempts)
    while left is None or left:
        leaders = await router.by_leader(topic, attempts, left)
        asks = [(led.target.address, request_to(led)) for led in leaders]
        failure: FailedAsk | None = None
        left = []
        for led, outcome in zip(leaders, await router.ask_all(asks, attempts), strict=True):
            if isinstance(outcome, QuiverError):
                failure = failure or (led, outcome)
                left += led.partitions
            else:
                answers.append((led, outcome))
        if failure is not None:
            await _recover(router, topic, topic_id, failure, attempts)
    return answers


async def _recover(
    router: Router, topic: str, topic_id: bytes | None, failed: FailedAsk, attempts: Attempts
) -> None:
    if topic_id is not None and isinstance(failed[1], TopicNotFound):
        router.map.forget(topic)
        await check_same(router, topic, topic_id, attempts)
    await recover_partitions(router, topic, *failed, attempts)


async def recover_partitions(
    router: Router, topic: str, led: LeaderPartitions, error: QuiverError, attempts: Attempts
) -> None:
    """Learn from a leader's failure, and return when it is time for the next; or raise."""
    if isinstance(error, NotLeader) and len(led.partitions) > 1:
        # The error does not name the partition: its hint would be taken for the wrong one.
        error = NotLeader(str(error))
    await router.recover(topic, led.partitions[0], led.target, error, attempts)


async def check_same(router: Router, topic: str, topic_id: bytes, attempts: Attempts) -> None:
    """Raise `TopicNotFound` unless the topic has this id; what is known may be out of date."""
    route = router.fresh_route(topic)
    if route is None:
        route = await router.route(topic, attempts)
    if route.id == topic_id:
        return
    if (await router.refresh(topic, attempts)).id != topic_id:
        raise TopicNotFound(
            f"topic {topic!r} was deleted and created again: what it held before is gone"
        )
