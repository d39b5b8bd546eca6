"""Records who did what, when and from where, in the topic `_audit`: one JSON object a message.

Recorded are requests that need `admin`, whether they were carried out or not, and whatever was
refused for lack of a token or a grant, at most a few of those a second. The broker to which the
client is connected records it, with the time of its own clock.

No request waits for its record (`SystemTopic`). What does not fit is counted, and the count is
recorded.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any, Final

from google.protobuf.json_format import MessageToDict

from quivermq.cluster import AUDIT_TOPIC
from quivermq.errors import QuiverError
from quivermq.node.callers import Caller
from quivermq.node.metadata import Metadata
from quivermq.node.permissions import AUDITED, wanted_by
from quivermq.node.system_topic import Call, SystemTopic
from quivermq.queue import TopicSettings
from quivermq.token_bucket import TokenBucket
from quivermq.wire import proto

logger = logging.getLogger("quivermq.audit")

_REFUSALS_PER_SECOND: Final = 10
_REFUSALS_BURST: Final = 100
_DETAIL_CHARACTERS_MAX: Final = 2_000
_LEFT_OUT: Final = frozenset({"content", "record"})
"""Of restores: what a backup holds, the digests of tokens among it."""
_SETTINGS: Final = TopicSettings(retention_ms=90 * 24 * 3600 * 1000, retention_bytes=256 << 20)
_REFUSED: Final = frozenset({"Unauthenticated", "Forbidden"})


class AuditLog:
    """The records of one broker on their way into the topic."""

    def __init__(
        self, node_id: int, metadata: Metadata | None, call: Call, now_ms: Callable[[], int]
    ) -> None:
        """Without metadata, as in a gateway, others make the topic."""
        self._node_id = node_id
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._left_out = 0
        self._refusals = TokenBucket(_REFUSALS_PER_SECOND, _REFUSALS_BURST, self._loop.time())
        self._topic = SystemTopic(
            AUDIT_TOPIC, _SETTINGS, metadata, call, lambda view: bool(view.users)
        )

    # Recording.

    def record(self, caller: Caller, request: proto.Request, code: str) -> None:
        """A request was answered; `code` is that of its refusal, if it was refused."""
        kind = request.WhichOneof("body") or ""
        if caller.is_broker or not (kind in AUDITED or code in _REFUSED):
            return
        if not code and _is_question(request):
            return
        if code in _REFUSED and not self._refusals.take(1, self._loop.time()):
            self._left_out += 1
            return
        if kind in AUDITED:
            found = MessageToDict(getattr(request, kind), preserving_proto_field_name=True)
            detail = {name: value for name, value in found.items() if name not in _LEFT_OUT}
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
            record["left_out_before"] = self._left_out
        text = json.dumps(record)
        if len(text) > _DETAIL_CHARACTERS_MAX:
            record["detail"] = {"beginning": json.dumps(detail)[:_DETAIL_CHARACTERS_MAX]}
            text = json.dumps(record)
        logger.info("%s", text)
        self._left_out = 0 if self._topic.add(text.encode()) else self._left_out + 1

    def catalog_changed(self) -> None:
        """There may be users now, and no topic yet."""
        self._topic.look()

    async def close(self) -> None:
        """Store what has gathered, if that is quick."""
        await self._topic.close()


def _is_question(request: proto.Request) -> bool:
    """It asks how far a change is, or what it would bring: pages ask that again and again."""
    return request.rebalance.status_only or request.upgrade_cluster.dry_run
