"""Channels: what kombu's virtual channels ask of a transport, done with topics and leases."""

import logging
import time
import warnings
from itertools import count
from queue import Empty
from typing import Any, Final

from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.transport.virtual.base import UNDELIVERABLE_FMT, UndeliverableWarning

from quivermq.aio import AsyncLeasedMessage
from quivermq.errors import TopicNotFound
from quivermq.integrations.kombu.envelope import (
    Payload,
    delay_of,
    expires_ms,
    pack,
    priority_of,
    unpack,
)
from quivermq.integrations.kombu.names import Binding
from quivermq.integrations.kombu.receiver import Outcome, Quota

logger = logging.getLogger("quivermq.kombu")

_TAGS: Final = count(1)


class QoS(virtual.QoS):
    """Unacknowledged messages of a channel. They are leased: none is ever published again."""

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message soon."""
        super().ack(delivery_tag)
        self.channel.settle(delivery_tag, "ack")

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give a message back at once, or put it among the dead letters."""
        super().ack(delivery_tag)
        self.channel.settle(delivery_tag, "requeue" if requeue else "reject")
        if requeue:
            self.channel.flush()

    def restore_unacked(self) -> list[Any]:
        """Give all messages back."""
        self._flush()
        for delivery_tag in list(self._delivered):
            self.channel.settle(delivery_tag, "release")
        self._delivered.clear()
        self.channel.flush()
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """The channel ends: give all messages back."""
        self._on_collect.cancel()
        if not getattr(self._delivered, "restored", False):
            self.restore_unacked()
            self._delivered.restored = True


class LeasingChannel(virtual.Channel):
    """A channel; its queues, bindings and messages are in the cluster."""

    QoS = QoS
    supports_fanout = True
    body_encoding = None
    """Values hold any bytes."""

    def __init__(self, connection: Any, **options: Any) -> None:
        super().__init__(connection, **options)
        self._quota = Quota()
        self._no_ack_quota = Quota()
        self._leased: dict[str, AsyncLeasedMessage] = {}
        self._own_queues: set[str] = set()
        """Queues that are deleted with this channel."""
        self._no_ack_queues: set[str] = set()

    # ---- publishing

    def _put(self, queue: str, message: Payload, **options: Any) -> None:
        transport = self.connection
        is_delayed = transport.options.get("eta_as_delay", True)
        value, topic = pack(message), transport.names.queue(queue)
        more = {"priority": priority_of(message), "delay": delay_of(message) if is_delayed else 0.0}
        try:
            transport.producing.produce(topic, value, **more)
        except TopicNotFound:
            if transport.queues.declare_again(queue):
                transport.producing.produce(topic, value, **more)
            else:
                self._drop_unroutable(queue, message)

    def _put_fanout(
        self, exchange: str, message: Payload, routing_key: str, **options: Any
    ) -> None:
        for binding in self.connection.bindings.of_exchange(exchange, fresh=True):
            self._put(binding.queue, message, **options)
        logger.debug("published to exchange %r with key %r", exchange, routing_key)

    def _drop_unroutable(self, queue: str, message: Payload) -> None:
        """As AMQP does: replies to a program that has ended come to this."""
        info = message["properties"].get("delivery_info", {})
        logger.info("no queue %r: a message was dropped", queue)
        if exchange := info.get("exchange"):
            for binding in self.connection.bindings.of_exchange(exchange, fresh=True):
                if binding.queue == queue:
                    self.connection.bindings.unbind(exchange, binding)

    def _next_delivery_tag(self) -> str:
        return str(next(_TAGS))

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> list[str]:
        default = self.deadletter_queue if default is None else default
        if not exchange:
            return [queue for queue in (routing_key or default,) if queue]
        kind = self.typeof(exchange)
        for fresh in (False, True):
            table = self._table(exchange, fresh=fresh)
            if found := kind.lookup(table, exchange, routing_key, default):
                return sorted(found)
        if default is None:
            return []
        text = UNDELIVERABLE_FMT.format(exchange=exchange, routing_key=routing_key)
        warnings.warn(UndeliverableWarning(text), stacklevel=2)
        self._new_queue(default)
        return [default]

    # ---- exchanges and bindings

    def get_table(self, exchange: str) -> list[tuple[str, str | None, str]]:
        """The bindings of an exchange, as kombu's exchange types have them."""
        return self._table(exchange, fresh=True)

    def _table(self, exchange: str, *, fresh: bool) -> list[tuple[str, str | None, str]]:
        kind = self.typeof(exchange)
        return [
            kind.prepare_bind(binding.queue, exchange, binding.routing_key, None)
            for binding in self.connection.bindings.of_exchange(exchange, fresh=fresh)
        ]

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        logger.debug("queue %r is bound to %r, pattern %r", queue, exchange, pattern)
        self.connection.bindings.bind(exchange, Binding(routing_key or "", queue))

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **options: Any,
    ) -> None:
        """Remove a binding."""
        exchange = exchange or "amq.direct"
        self.state.binding_delete(queue, exchange, routing_key)
        self.connection.bindings.unbind(exchange, Binding(routing_key or "", queue))

    def exchange_delete(
        self,
        exchange: str,
        if_unused: bool = False,
        nowait: bool = False,
    ) -> None:
        """Delete an exchange and its bindings; the queues stay."""
        if if_unused and self.connection.bindings.of_exchange(exchange, fresh=True):
            return
        self.connection.bindings.drop(exchange)
        self.state.exchanges.pop(exchange, None)

    # ---- queues

    def prepare_queue_arguments(self, arguments: Any, **options: Any) -> Any:
        """Expiry and time to live under the names that RabbitMQ has for them."""
        return to_rabbitmq_queue_arguments(arguments or {}, **options)

    def _new_queue(
        self,
        queue: str,
        auto_delete: bool = False,
        exclusive: bool = False,
        arguments: Any = None,
        **options: Any,
    ) -> None:
        self.connection.queues.declare(queue, arguments or {})
        if auto_delete or exclusive:
            self._own_queues.add(queue)

    def _has_queue(self, queue: str, **options: Any) -> bool:
        return bool(self.connection.queues.exists(queue))

    def _size(self, queue: str) -> int:
        return int(self.connection.queues.size(queue))

    def _purge(self, queue: str) -> int:
        return int(self.connection.queues.purge(queue))

    def queue_delete(
        self,
        queue: str,
        if_unused: bool = False,
        if_empty: bool = False,
        **options: Any,
    ) -> None:
        """Delete a queue and the bindings of it that this connection made; publishers drop others
        when they meet them."""
        if if_empty and self._size(queue):
            return
        if self.connection.is_receiving:
            self.connection.receiver.cancel(queue)
        for exchange, routing_key, _ in list(self.state.queue_bindings(queue)):
            self.connection.bindings.unbind(exchange, Binding(routing_key or "", queue))
        self.state.queue_bindings_delete(queue)
        self.connection.queues.delete(queue)
        self._own_queues.discard(queue)

    # ---- consuming

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Any,
        consumer_tag: str,
        **options: Any,
    ) -> None:
        """Begin to receive the messages of a queue."""
        super().basic_consume(queue, no_ack, callback, consumer_tag, **options)
        if no_ack:
            self._no_ack_queues.add(queue)
        else:
            self._no_ack_queues.discard(queue)
        self.connection.channels_by_queue[queue] = self
        topic = self.connection.names.queue(queue)
        self.connection.receiver.consume(queue, topic, self._quota_of(queue))

    def basic_cancel(self, consumer_tag: str) -> None:
        """Receive no more for a consumer; what was delivered stays its own."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None and queue not in self._active_queues:
            self.connection.receiver.cancel(queue)
            self.connection.channels_by_queue.pop(queue, None)

    def basic_qos(
        self,
        prefetch_size: int = 0,
        prefetch_count: int = 0,
        apply_global: bool = False,
    ) -> None:
        """Set how many unacknowledged messages the consumers of this channel have at most."""
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self._quota.limit = prefetch_count
        if self.connection.is_receiving:
            self.connection.receiver.poke()

    def _get(self, queue: str, timeout: float | None = None) -> Payload:
        try:
            topic = self.connection.names.queue(queue)
            while True:
                message = self.connection.receiver.get(topic, self._quota)
                if message is None:
                    raise Empty
                if (payload := self.admit(queue, message)) is not None:
                    return payload
        except TopicNotFound:
            raise Empty from None

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:
        """Take one message at once, or None."""
        message = super().basic_get(queue, no_ack, **options)
        if message is not None and no_ack:
            self.settle(message.delivery_tag, "ack")
        return message

    def admit(self, queue: str, message: AsyncLeasedMessage) -> Payload | None:
        """A leased message as kombu has it; None: it is too old, or of another kind."""
        quota = self._quota_of(queue)
        try:
            payload = unpack(message.value)
            limit = expires_ms(payload, self.connection.queues.message_ttl_ms(queue))
        except (ValueError, TypeError) as error:
            logger.warning("queue %r: %r cannot be read: %s", queue, message, error)
            self.connection.receiver.settle("reject", [message], quota)
            return None
        if limit is not None and message.timestamp + limit <= time.time() * 1000:
            self.connection.receiver.settle("ack", [message], quota)
            return None
        tag = self._next_delivery_tag()
        payload["properties"]["delivery_tag"] = tag
        if message.delivery_count > 1:
            payload["properties"].setdefault("delivery_info", {})["redelivered"] = True
        self._leased[tag] = message
        return payload

    def deliver(self, queue: str, message: AsyncLeasedMessage) -> bool:
        """Pass a message that has arrived to its consumer; False: it is not delivered."""
        callback = self.connection._callbacks.get(queue)  # noqa: SLF001 - of kombu, for subclasses
        if callback is None:
            self.connection.receiver.settle("release", [message], self._quota_of(queue))
            return False
        payload = self.admit(queue, message)
        if payload is None:
            return False
        tag = payload["properties"]["delivery_tag"]
        if queue in self._no_ack_queues:
            self.settle(tag, "ack", self._no_ack_quota)
        callback(payload)
        return True

    def settle(self, delivery_tag: str, outcome: Outcome, quota: Quota | None = None) -> None:
        """Settle a delivered message; one that is settled stays as it is."""
        message = self._leased.pop(delivery_tag, None)
        if message is not None:
            self.connection.receiver.settle(outcome, [message], quota or self._quota)

    def flush(self) -> None:
        """Wait until everything is settled."""
        if self.connection is not None and self.connection.is_receiving:
            self.connection.receiver.flush()

    def close(self) -> None:
        """Give back what is not acknowledged, and delete the queues of this channel."""
        if not self.closed and self.connection is not None:
            for consumer_tag in list(self._consumers):
                self.basic_cancel(consumer_tag)
            self.qos.restore_unacked_once()
            self.connection.delete_queues_of(self, sorted(self._own_queues))
        super().close()

    def _quota_of(self, queue: str) -> Quota:
        return self._no_ack_quota if queue in self._no_ack_queues else self._quota
