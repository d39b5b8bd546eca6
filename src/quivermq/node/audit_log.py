"""Records who did what, when and from where, in the topic `_audit`: one JSON object a message.

Recorded are requests that need `admin`, whether they were carried out or not, and whatever was
refused for lack of a token or a grant, at most a few of those a second. The broker to which the
client is connected records it, with the time of its own clock.

No request waits for its record: a task stores what has gathered. The queue is bounded; what does
not fit is counted, and the count is recorded.
"""

import asyncio
import json
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from google.protobuf.json_format import MessageToDict

from quivermq.batches import Frame, encode_batch
from quivermq.cluster import AUDIT_TOPIC, Edit, View, create_topic
from quivermq.errors import QuiverError
from quivermq.node.callers import Caller
from quivermq.node.metadata import Metadata
from quivermq.node.permissions import AUDITED, wanted_by
from quivermq.node.tasks import end_tasks
from quivermq.node.token_bucket import TokenBucket
from quivermq.queue import TopicSettings
from quivermq.wire import error_from_proto, proto

logger = logging.getLogger("quivermq.audit")

RECORDS_MAX: Final = 10_000
"""That wait to be stored."""
_AT_ONCE: Final = 100
_REFUSALS_PER_SECOND: Final = 10
_REFUSALS_BURST: Final = 100
_DETAIL_CHARACTERS_MAX: Final = 2_000
_AGAIN_S: Final = 1.0
_STORE_MS: Final = 5_000
_SETTINGS: Final = TopicSettings(retention_ms=90 * 24 * 3600 * 1000, retention_bytes=256 << 20)
_REFUSED: Final = frozenset({"Unauthenticated", "Forbidden"})

Call = Callable[[proto.Request, Sequence[Frame]], Awaitable[tuple[proto.Response, Sequence[Frame]]]]


class AuditLog:
    """The records of one broker on their way into the topic."""

    def __init__(
        self, node_id: int, metadata: Metadata | None, call: Call, now_ms: Callable[[], int]
    ) -> None:
        """Without metadata, as in a gateway, others make the topic."""
        self._node_id = node_id
        self._metadata = metadata
        self._call = call
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._records: deque[bytes] = deque()
        self._left_out = 0
        self._refusals = TokenBucket(_REFUSALS_PER_SECOND, _REFUSALS_BURST, self._loop.time())
        self._wanted = asyncio.Event()
        self._task = asyncio.create_task(self._keep_storing(), name="audit log")

    # Recording.

    def record(self, caller: Caller, request: proto.Request, code: str) -> None:
        """A request was answered; `code` is that of its refusal, if it was refused."""
        kind = request.WhichOneof("body") or ""
        if caller.is_broker or not (kind in AUDITED or code in _REFUSED):
            return
        if code in _REFUSED and not self._refusals.take(1, self._loop.time()):
            self._left_out += 1
            return
        if kind in AUDITED:
            detail = MessageToDict(getattr(request, kind), preserving_proto_field_name=True)
        else:
            detail = {"wanted": str(wanted_by(request))}
        self._add(caller, kind, code or "ok", detail)

    def record_sign_in(self, caller: Caller, error: QuiverError) -> None:
        """Somebody was not let in."""
        if not self._refusals.take(1, self._loop.time()):
            self._left_out += 1
            return
        self._add(caller, "sign_in", error.code, {"reason": str(error)})

    def _add(self, caller: Caller, action: str, outcome: str, detail: dict[str, Any]) -> None:
        if len(self._records) >= RECORDS_MAX:
            self._left_out += 1
            return
        record: dict[str, Any] = {
            "time_ms": self._now_ms(),
            "user": caller.name,
            "address": caller.address,
            "door": caller.door,
            "node": self._node_id,
            "action": action,
            "outcome": outcome,
            "detail": detail,
        }
        if self._left_out:
            record["left_out_before"], self._left_out = self._left_out, 0
        text = json.dumps(record)
        if len(text) > _DETAIL_CHARACTERS_MAX:
            record["detail"] = {"beginning": json.dumps(detail)[:_DETAIL_CHARACTERS_MAX]}
            text = json.dumps(record)
        logger.info("%s", text)
        self._records.append(text.encode())
        self._wanted.set()

    # Storing.

    def catalog_changed(self) -> None:
        """There may be users now, and no topic yet."""
        if self._is_missing:
            self._wanted.set()

    @property
    def _is_missing(self) -> bool:
        if self._metadata is None:
            return False
        view = self._metadata.view
        return bool(view.users) and AUDIT_TOPIC not in view.topics

    async def _keep_storing(self) -> None:
        while True:
            with suppress(TimeoutError):
                is_behind = self._records or self._is_missing
                async with asyncio.timeout(_AGAIN_S if is_behind else None):
                    await self._wanted.wait()
            self._wanted.clear()
            try:
                await self._store_all()
            except QuiverError as error:
                logger.debug("%d records wait to be stored: %s", len(self._records), error)
                await asyncio.sleep(_AGAIN_S)
            except Exception:
                logger.exception("the audit log cannot be stored, and is tried again")
                await asyncio.sleep(_AGAIN_S)

    async def _store_all(self) -> None:
        metadata = self._metadata
        if metadata is not None and self._is_missing and metadata.is_leader:
            await metadata.edit(_build_topic)
        while self._records and (metadata is None or AUDIT_TOPIC in metadata.view.topics):
            portion = list(islice(self._records, _AT_ONCE))
            request = proto.Request(timeout_ms=_STORE_MS)
            request.produce.topic = AUDIT_TOPIC
            # One by one: laying out a single value takes no Arrow, which takes long to load.
            response, _ = await self._call(request, [encode_batch([each]) for each in portion])
            if response.WhichOneof("body") == "error":
                raise error_from_proto(response.error)
            for _ in portion:
                self._records.popleft()

    async def close(self) -> None:
        """Store what has gathered, if that is quick."""
        await end_tasks(self._task)
        with suppress(QuiverError, TimeoutError):
            async with asyncio.timeout(_AGAIN_S):
                await self._store_all()


def _build_topic(view: View) -> Edit | None:
    if AUDIT_TOPIC in view.topics:
        return None
    return create_topic(
        view, AUDIT_TOPIC, topic_id=secrets.token_hex(12), settings=_SETTINGS, internal=True
    )
