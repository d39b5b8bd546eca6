"""Finds the last sequence number of a producer in a partition: its leader's, or its batches'."""

from typing import Final

from quivermq import batches
from quivermq.batches import Header
from quivermq.client.connect_options import chosen_identity
from quivermq.client.core import Core
from quivermq.errors import InvalidRequest, OutOfSequence, QuiverError
from quivermq.wire import proto

_FAR_AHEAD: Final = 1 << 60
"""A number that no producer comes to."""


async def position_of(core: Core, topic: str, partition: int, producer_id: int, epoch: int) -> int:
    """How many messages a partition took from a producer: asked by a batch that it must refuse."""
    router = core.router
    attempts = router.attempts(f"asking {topic}/{partition} for a producer")
    identity = chosen_identity(producer_id, epoch)
    if identity is None:
        raise InvalidRequest("a producer has an id")
    probe = batches.encode_batch(
        [b""], origin=batches.Origin(*identity, _FAR_AHEAD), limits=router.limits
    )
    request = proto.Request()
    request.produce.topic, request.produce.partition = topic, partition
    while True:
        target = await router.target(topic, partition, attempts)
        request.direct, request.produce.topic_id = target.direct, target.topic_id
        try:
            await router.exchange(target.address, request, (probe,), attempts)
        except OutOfSequence as refusal:
            if refusal.may_be_forgotten:
                raise
            return refusal.expected
        except QuiverError as error:
            await router.recover(topic, partition, target, error, attempts)
        else:
            raise InvalidRequest(f"{topic}/{partition} took number {_FAR_AHEAD} of a producer")


async def count_stored(
    core: Core, topic: str, partition: int, producer_id: int, epoch: int, since_ms: int
) -> int:
    """How many messages of a producer's epoch a partition holds: looked for in all of its batches
    since a time."""
    start = await core.offsets.at(topic, partition, since_ms)
    # Asked after that: if a batch from before the time is kept, none since was deleted.
    first = await _first_batch(core, topic, partition)
    if (start > 0) if first is None else (first.base_offset > 0 and first.timestamp_ms >= since_ms):
        kept = "nothing" if first is None else f"what it took since {first.timestamp_ms}"
        raise InvalidRequest(
            f"{topic}/{partition} holds {kept} (milliseconds since 1970): what it took since "
            f"{since_ms} cannot be told any more"
        )
    found = 0
    cursor = core.cursor(topic, partition, start=start, stop=None, follow=False, follower_ok=False)
    try:
        while (span := await cursor.next_span()) is not None:
            for frame in span.frames:
                header = frame.header
                if (header.producer_id, header.producer_epoch) == (producer_id, epoch):
                    found = max(found, header.sequence + header.count)
    finally:
        cursor.close()
    return found


async def _first_batch(core: Core, topic: str, partition: int) -> Header | None:
    cursor = core.cursor(
        topic, partition, start="earliest", stop=None, follow=False, follower_ok=False
    )
    try:
        span = await cursor.next_span()
    finally:
        cursor.close()
    return None if span is None or not span.frames else span.frames[0].header
