"""A message that is published, with all that a broker must know to store it."""

from typing import Any

from faststream.response import Response
from faststream.response.publish_type import PublishType
from faststream.response.response import BatchPublishCommand, PublishCommand

from quivermq.integrations.faststream.message import CONTENT_TYPE, CORRELATION_ID, REPLY_TO


class QuiverResponse(Response):
    """The result of a handler, with a key, a priority or a delay for the publisher."""

    def __init__(
        self,
        body: Any,
        *,
        key: str | bytes | None = None,
        priority: int = 0,
        delay: float = 0.0,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.key = key
        self.priority = priority
        self.delay = delay

    def as_publish_command(self) -> "QuiverPublishCommand":
        return QuiverPublishCommand(
            self.body,
            key=self.key,
            priority=self.priority,
            delay=self.delay,
            headers=self.headers,
            correlation_id=self.correlation_id,
            _publish_type=PublishType.PUBLISH,
        )


class QuiverPublishCommand(BatchPublishCommand):
    """One message, or several with the same key, priority, delay and headers."""

    def __init__(
        self,
        body: Any,
        /,
        *bodies: Any,
        _publish_type: PublishType,
        topic: str = "",
        key: str | bytes | None = None,
        priority: int = 0,
        delay: float = 0.0,
        partition: int | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
    ) -> None:
        super().__init__(
            body,
            *bodies,
            destination=topic,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
            _publish_type=_publish_type,
        )
        self.key = key
        self.priority = priority
        self.delay = delay
        self.partition = partition

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> "QuiverPublishCommand":
        """Of whatever a handler returned."""
        body, bodies = cls._parse_bodies(cmd.body, batch=batch)
        if isinstance(cmd, QuiverPublishCommand):
            if batch:
                cmd.body, cmd.extra_bodies = body, bodies
            return cmd
        return cls(
            body,
            *bodies,
            topic=cmd.destination,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
            _publish_type=cmd.publish_type,
        )

    def wire_headers(self, content_type: str | None) -> dict[str, bytes]:
        """All headers as they are stored; those of the user come first."""
        own = {
            CONTENT_TYPE: content_type,
            CORRELATION_ID: self.correlation_id,
            REPLY_TO: self.reply_to,
        }
        given = {name: value for name, value in own.items() if value} | self.headers
        return {name: _as_bytes(value) for name, value in given.items()}


def _as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
