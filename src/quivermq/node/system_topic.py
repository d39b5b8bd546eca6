"""Stores records of a broker in a topic of the cluster's own: best effort, and never in the way.

Nothing waits for its record: a task stores what has gathered. The queue is bounded; what does not
fit is refused at once, and its writer counts and tells it. A record is stored again if it is not
known whether it was stored.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from quivermq.batches import Frame, encode_batch
from quivermq.cluster import Edit, View, create_topic
from quivermq.errors import QuiverError
from quivermq.node.metadata import Metadata
from quivermq.node.tasks import end_tasks
from quivermq.queue import TopicSettings
from quivermq.wire import error_from_proto, proto

logger = logging.getLogger("quivermq.system_topic")

RECORDS_MAX: Final = 10_000
"""That wait to be stored."""
_AT_ONCE: Final = 100
_AGAIN_S: Final = 1.0
_STORE_MS: Final = 5_000

Call = Callable[[proto.Request, Sequence[Frame]], Awaitable[tuple[proto.Response, Sequence[Frame]]]]


class SystemTopic:
    """Records on their way into a topic; the leader of the cluster creates it when it is wanted."""

    def __init__(
        self,
        name: str,
        settings: TopicSettings,
        metadata: Metadata | None,
        call: Call,
        is_wanted: Callable[[View], bool],
    ) -> None:
        """Without metadata, as in a gateway, others make the topic."""
        self.name = name
        self._settings = settings
        self._metadata = metadata
        self._call = call
        self._is_wanted = is_wanted
        self._records: deque[bytes] = deque()
        self._due = asyncio.Event()
        self._task = asyncio.create_task(self._keep_storing(), name=f"topic {name}")

    def add(self, record: bytes) -> bool:
        """Store it soon; False: too many wait."""
        if len(self._records) >= RECORDS_MAX:
            return False
        self._records.append(record)
        self._due.set()
        return True

    @property
    def waiting(self) -> int:
        """Records that are not stored yet."""
        return len(self._records)

    def forget(self) -> None:
        """Drop what waits: it is of a cluster that this broker has left."""
        self._records.clear()

    def look(self) -> None:
        """The catalog may have changed: the topic may be wanted, or may have been made."""
        if self._is_missing or self._is_behind:
            self._due.set()

    @property
    def _is_missing(self) -> bool:
        metadata = self._metadata
        if metadata is None or self.name in metadata.view.topics:
            return False
        return metadata.is_leader and self._is_wanted(metadata.view)

    @property
    def _is_behind(self) -> bool:
        metadata = self._metadata
        return bool(self._records) and (metadata is None or self.name in metadata.view.topics)

    async def _keep_storing(self) -> None:
        while True:
            with suppress(TimeoutError):
                is_late = self._is_behind or self._is_missing
                async with asyncio.timeout(_AGAIN_S if is_late else None):
                    await self._due.wait()
            self._due.clear()
            try:
                await self._store_all()
            except QuiverError as error:
                logger.debug("%d records of %s wait: %s", len(self._records), self.name, error)
                await asyncio.sleep(_AGAIN_S)
            except Exception:
                logger.exception("%s cannot be stored, and is tried again", self.name)
                await asyncio.sleep(_AGAIN_S)

    async def _store_all(self) -> None:
        if self._metadata is not None and self._is_missing:
            await self._metadata.edit(self._build)
        while self._is_behind:
            portion = list(islice(self._records, _AT_ONCE))
            request = proto.Request(timeout_ms=_STORE_MS)
            request.produce.topic = self.name
            # One by one: laying out a single value takes no Arrow, which takes long to load.
            response, _ = await self._call(request, [encode_batch([each]) for each in portion])
            if response.WhichOneof("body") == "error":
                raise error_from_proto(response.error)
            for each in portion:
                # They may have been forgotten meanwhile.
                if self._records and self._records[0] is each:
                    self._records.popleft()

    def _build(self, view: View) -> Edit | None:
        if self.name in view.topics:
            return None
        return create_topic(
            view,
            self.name,
            topic_id=secrets.token_hex(12),
            settings=self._settings,
            partitions=1,
            internal=True,
        )

    async def close(self, patience_s: float = 1.0) -> None:
        """Store what has gathered, if that is quick."""
        await end_tasks(self._task)
        with suppress(QuiverError, TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._store_all()
