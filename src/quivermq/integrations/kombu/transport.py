"""The transport: a connection of kombu to a cluster."""

import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from kombu.exceptions import ChannelError
from kombu.transport import virtual

import quivermq
from quivermq.aio import AsyncClient
from quivermq.aio import connect as connect_async
from quivermq.client import Client, connect
from quivermq.errors import (
    ConnectionFailed,
    NotEnoughReplicas,
    NotLeader,
    Overloaded,
    QuiverError,
    Timeout,
    TopicNotFound,
)
from quivermq.integrations.kombu.bindings import BindingTable
from quivermq.integrations.kombu.broker_url import BrokerUrl, show_url
from quivermq.integrations.kombu.channel import LeasingChannel
from quivermq.integrations.kombu.names import TopicNames
from quivermq.integrations.kombu.queues import QueueOptions, Queues
from quivermq.integrations.kombu.receiver import Arrival, QueueReceiver

VISIBILITY_SECONDS: Final = 30.0
"""Messages of a worker that was killed come back after so long. Workers that live extend theirs."""


class Transport(virtual.Transport):
    """Publishes with one client, and receives with another on an event loop in the background."""

    Channel = LeasingChannel
    can_parse_url = True
    default_port = 7600
    polling_interval = None
    driver_type = "quiver"
    driver_name = "quivermq"
    connection_errors = (
        ConnectionError,
        ConnectionFailed,
        NotEnoughReplicas,
        NotLeader,
        Overloaded,
        Timeout,
        TopicNotFound,
    )
    channel_errors = (ChannelError,)
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset({"direct", "topic", "fanout"})
    )

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.options: dict[str, Any] = client.transport_options or {}
        self.channels_by_queue: dict[str, LeasingChannel] = {}
        self._url = BrokerUrl.of_connection(client)
        self.names = TopicNames(self._url.virtual_host)
        self._producing: Client | None = None
        self._receiver: QueueReceiver | None = None
        self._hub: Any = None
        self._process = os.getpid()

    def driver_version(self) -> str:
        """The release of the client."""
        return quivermq.__version__

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """The URL for people."""
        return show_url(uri, include_password=include_password, mask=mask)

    @property
    def producing(self) -> Client:
        """The client that publishes and declares."""
        if self._producing is None:
            raise ConnectionFailed("this connection is closed")
        return self._producing

    @property
    def receiver(self) -> QueueReceiver:
        """The client that receives, from its first use on."""
        if self._receiver is None:
            arguments = self._url.connect_arguments(self.options)

            async def connecting() -> AsyncClient:
                return await connect_async(**arguments)

            visibility = float(self.options.get("visibility_timeout", VISIBILITY_SECONDS))
            self._receiver = QueueReceiver(connecting, visibility)
            self._watch()
        return self._receiver

    @property
    def is_receiving(self) -> bool:
        """It has a receiver."""
        return self._receiver is not None

    def establish_connection(self) -> Any:
        """Connect to a broker."""
        self._producing = connect(**self._url.connect_arguments(self.options))
        self.bindings = BindingTable(self._producing, self.names)
        self.queues = Queues(self._producing, self.names, QueueOptions.of(self.options))
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        """Close all channels, then the clients."""
        try:
            super().close_connection(connection)
        finally:
            receiver, self._receiver = self._receiver, None
            producing, self._producing = self._producing, None
            self._unwatch(receiver)
            if receiver is not None:
                receiver.close()
            if producing is not None:
                producing.close()

    def delete_queues_of(self, channel: LeasingChannel, queues: Sequence[str]) -> None:
        """Delete the queues that end with a channel, if a broker can be reached."""
        # A child that was forked has copies of channels; the queues are its parent's.
        if self._producing is not None and self._process == os.getpid():
            with suppress(QuiverError):
                for queue in queues:
                    channel.queue_delete(queue)

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver everything that has arrived, as soon as there is something."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if self._deliver_all(self.receiver.take(left)):
                return
            if deadline is not None and time.monotonic() >= deadline:
                raise socket.timeout  # noqa: UP041 - the name that kombu documents

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Deliver from the event loop of a worker."""
        self._hub = loop
        self._watch()

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        """Deliver by `drain_events` only."""
        self._unwatch(self._receiver)
        self._hub = None

    def _watch(self) -> None:
        if self._hub is not None and self._receiver is not None:
            self._hub.add_reader(self._receiver.fileno(), self._on_readable)

    def _unwatch(self, receiver: QueueReceiver | None) -> None:
        if self._hub is not None and receiver is not None:
            self._hub.remove_reader(receiver.fileno())

    def _on_readable(self) -> None:
        if self._receiver is not None:
            self._deliver_all(self._receiver.take_ready())

    def _deliver_all(self, arrivals: list[Arrival]) -> int:
        """Returns how many had a consumer, and were not too old."""
        delivered = 0
        for at, (queue, message) in enumerate(arrivals):
            channel = self.channels_by_queue.get(queue)
            try:
                if channel is None:
                    self.receiver.settle("release", [message], None)
                else:
                    delivered += channel.deliver(queue, message)
            except BaseException:
                # The callback failed: what comes behind it is not lost to this connection.
                self.receiver.give_back(arrivals[at + 1 :])
                raise
        return delivered
