"""Settings that FastStream's parts pass among each other: of the broker and of its endpoints."""

from dataclasses import dataclass, field

from faststream._internal.configs import (
    BrokerConfig,
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
    SubscriberUsecaseConfig,
)
from faststream._internal.constants import EMPTY
from faststream.exceptions import IncorrectState
from faststream.middlewares import AckPolicy

from quivermq.client import AsyncClient


@dataclass(kw_only=True)
class QuiverBrokerConfig(BrokerConfig):
    """Of a broker or a router."""

    connected: AsyncClient | None = field(default=None, init=False, repr=False)

    @property
    def client(self) -> AsyncClient:
        """The broker's client."""
        if self.connected is None:
            raise IncorrectState("the broker is not connected: await broker.connect() first")
        return self.connected


@dataclass(frozen=True, kw_only=True)
class SubscribeTo:
    """The arguments of `client.subscribe`, for a handler."""

    topic: str
    group: str
    prefetch: int
    visibility: float
    start: str
    max_workers: int
    batch: bool


@dataclass(kw_only=True)
class QuiverSubscriberConfig(SubscriberUsecaseConfig):
    """Of a subscriber."""

    _outer_config: QuiverBrokerConfig = field(default_factory=QuiverBrokerConfig)
    to: SubscribeTo

    @property
    def ack_policy(self) -> AckPolicy:
        """A failed message is delivered again, until it is a dead letter, unless told otherwise."""
        for policy in (self._ack_policy, self._outer_config.ack_policy):
            if policy is not EMPTY:
                return policy
        return AckPolicy.NACK_ON_ERROR


@dataclass(kw_only=True)
class QuiverSubscriberSpecificationConfig(SubscriberSpecificationConfig):
    """Of a subscriber's part of the AsyncAPI document."""

    to: SubscribeTo


@dataclass(frozen=True, kw_only=True)
class PublishTo:
    """Where the result of a handler goes."""

    topic: str
    key: str | bytes | None
    priority: int
    delay: float
    headers: dict[str, str]
    reply_to: str
    batch: bool


@dataclass(kw_only=True)
class QuiverPublisherConfig(PublisherUsecaseConfig):
    """Of a publisher."""

    _outer_config: QuiverBrokerConfig = field(default_factory=QuiverBrokerConfig)
    to: PublishTo


@dataclass(kw_only=True)
class QuiverPublisherSpecificationConfig(PublisherSpecificationConfig):
    """Of a publisher's part of the AsyncAPI document."""

    to: PublishTo
