"""Reads the event feed of a cluster: `client.events(...)`, blocking or awaitable."""

import time
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Final, NamedTuple

from quivermq.client.checks import check_number
from quivermq.client.core import Core
from quivermq.client.cursor import Cursor, Place
from quivermq.client.models import Message
from quivermq.client.reader import AsyncReader, Reader
from quivermq.client.topic_cursor import TopicCursor
from quivermq.client.transport import run
from quivermq.errors import InvalidRequest, OffsetOutOfRange, TopicNotFound
from quivermq.events import EVENTS_TOPIC, KINDS, Event

_LOOK_AGAIN_S: Final = 1.0


class EventOptions(NamedTuple):
    """Which events to read."""

    kinds: frozenset[str]
    start: Place
    follow: bool

    @classmethod
    def of(
        cls, kinds: str | Iterable[str] | None, since: float | None, *, follow: bool
    ) -> "EventOptions":
        """Checked; `since` in seconds."""
        wanted = [kinds] if isinstance(kinds, str) else list(kinds or ())
        for kind in wanted:
            if kind not in KINDS:
                raise InvalidRequest(f"there is no kind {kind!r}; there are: {', '.join(KINDS)}")
        if since is None:
            return cls(frozenset(wanted), "earliest", follow)
        check_number("since", since, least=0)
        start = f"@{max(0, int((time.time() - since) * 1000))}"
        return cls(frozenset(wanted), start, follow)

    def event_of(self, message: Message) -> Event | None:
        """The event in a message; None if it is none, or not wanted."""
        event = Event.parse(message.value, message.offset)
        return event if event and (not self.kinds or event.kind in self.kinds) else None


def _cursor(core: Core, options: EventOptions) -> Cursor | TopicCursor:
    return core.cursor_of(
        EVENTS_TOPIC, 0, start=options.start, stop=None, follow=options.follow, follower_ok=False
    )


def read_events(core: Core, options: EventOptions) -> Iterator[Event]:
    """Events in the order in which they were stored."""
    while True:
        try:
            with Reader(core.router, EVENTS_TOPIC, _cursor(core, options)) as reader:
                for message in reader:
                    if event := options.event_of(message):
                        yield event
        except OffsetOutOfRange:
            # Retention was faster.
            pass
        except TopicNotFound:
            # The first event makes it.
            if not options.follow:
                return
            run(core.transport.sleep(_LOOK_AGAIN_S))
        else:
            return
        options = options._replace(start="earliest")


async def read_events_async(core: Core, options: EventOptions) -> AsyncIterator[Event]:
    """The same, awaited."""
    while True:
        try:
            async with AsyncReader(core.router, EVENTS_TOPIC, _cursor(core, options)) as reader:
                async for message in reader:
                    if event := options.event_of(message):
                        yield event
        except OffsetOutOfRange:
            # Retention was faster.
            pass
        except TopicNotFound:
            # The first event makes it.
            if not options.follow:
                return
            await core.transport.sleep(_LOOK_AGAIN_S)
        else:
            return
        options = options._replace(start="earliest")
