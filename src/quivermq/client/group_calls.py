"""The blocking client's methods for groups: see `quivermq.Client`, which has them all."""

from collections.abc import Callable, Iterable, Sequence
from weakref import WeakSet

from quivermq.client.background_loop import BackgroundLoop
from quivermq.client.core import Core
from quivermq.client.shared.leased_message import LeasedMessage
from quivermq.client.shared.leased_table import LeasedTable
from quivermq.client.shared.leases import (
    ACK,
    RELEASE,
    Settlement,
    SettlementTerms,
    by_settler,
    extend_terms,
    nack_terms,
    reject_terms,
    settlements_of,
)
from quivermq.client.shared.poll_result import messages_of_runs, table_of_runs
from quivermq.client.shared.prefetch import SubscribeOptions
from quivermq.client.shared.subscription import Subscription
from quivermq.client.transport import run
from quivermq.errors import LeaseLost


class GroupCalls:
    """Polling and settling."""

    _core: Core
    _subscriptions: WeakSet[Subscription]
    _background: BackgroundLoop
    _background_core: Callable[[], Core]

    def poll(
        self,
        topic: str,
        group: str,
        max_messages: int = 100,
        wait: float = 1.0,
        visibility: float = 30.0,
        ack: str = "manual",
        start: str = "earliest",
    ) -> list[LeasedMessage]:
        """Take messages for a group; while they are leased, no other consumer of it gets them.

        >>> for message in client.poll("orders", group="billing"):
        ...     bill(message.value)
        ...     message.ack()

        Returns as soon as there are any, up to `max_messages`; empty if none came within `wait`
        seconds. What is not acknowledged within `visibility` seconds is delivered again. With
        `ack="auto"` messages are acknowledged before they are delivered: at most once. A group
        begins to exist with its first poll: at the `start` "earliest" or "latest".
        """
        leased_runs = run(
            self._core.consuming.poll(
                topic, group, max_messages, wait, visibility, ack, start, self._carry_out
            )
        )
        return messages_of_runs(leased_runs, LeasedMessage, self._core.router.limits)

    def poll_arrow(
        self,
        topic: str,
        group: str,
        max_messages: int = 10_000,
        wait: float = 1.0,
        visibility: float = 30.0,
        ack: str = "manual",
        start: str = "earliest",
    ) -> LeasedTable:
        """The same as `poll`, as one Arrow table, by far the fastest way.

        >>> batch = client.poll_arrow("orders", group="billing")
        >>> batch.table["value"]
        >>> batch.ack()
        """
        leased_runs = run(
            self._core.consuming.poll(
                topic, group, max_messages, wait, visibility, ack, start, self._carry_out
            )
        )
        return LeasedTable(*table_of_runs(leased_runs, self._core.router.limits), self._carry_out)

    def ack(self, messages: Iterable[LeasedMessage]) -> None:
        """These are done: their group never gets them again. Durable when this returns.

        >>> client.ack(client.poll("orders", group="billing"))

        Raises `LeaseLost`, after all others are settled, for messages that somebody else has.
        """
        self._settle(messages, ACK)

    def nack(self, messages: Iterable[LeasedMessage], delay: float | None = None) -> None:
        """These failed: deliver them again after `delay` seconds; None: the topic's backoff."""
        self._settle(messages, nack_terms(delay))

    def reject(self, messages: Iterable[LeasedMessage], reason: str = "") -> None:
        """These will never succeed: put them among the dead letters at once."""
        self._settle(messages, reject_terms(reason))

    def extend(self, messages: Iterable[LeasedMessage], seconds: float) -> None:
        """These take longer: their leases, each as a whole, last for so long from here."""
        self._settle(messages, extend_terms(seconds))

    def release(self, messages: Iterable[LeasedMessage]) -> None:
        """These were not worked on: let others have them at once, not counted as a failure."""
        self._settle(messages, RELEASE)

    def subscribe(
        self,
        topic: str,
        group: str,
        handler: Callable[[LeasedMessage], object] | None = None,
        prefetch: int = 64,
        visibility: float = 30.0,
        ack: str = "manual",
        concurrency: int = 1,
        start: str = "earliest",
    ) -> Subscription:
        """Messages of a topic for a group, pushed as they come: to an iterator, or to a handler.

        >>> with client.subscribe("orders", group="billing") as subscription:
        ...     for message in subscription:
        ...         bill(message.value)
        ...         message.ack()
        >>> subscription = client.subscribe("orders", group="billing", handler=bill, concurrency=8)

        A message is acknowledged when the handler returns, and delivered again when it raises;
        `concurrency` handlers run at a time. Up to `prefetch` messages are held, whose leases are
        extended until they are handed out, and while a handler or the loop works on them. It goes
        on when leaders change or brokers are lost; use it as a context manager, or `close()` it.
        """
        options = SubscribeOptions(topic, group, prefetch, visibility, ack, concurrency, start)
        return Subscription(
            self._background, self._background_core, options, handler, self._subscriptions.add
        )

    def _settle(self, messages: Iterable[LeasedMessage], terms: SettlementTerms) -> None:
        lost: LeaseLost | None = None
        for settlements in by_settler(settlements_of(messages, terms)):
            try:
                settlements[0].lease.settle(settlements)
            except LeaseLost as error:
                lost = error
        if lost is not None:
            raise lost

    def _carry_out(self, settlements: Sequence[Settlement]) -> None:
        run(self._core.consuming.settling.settle(settlements))
