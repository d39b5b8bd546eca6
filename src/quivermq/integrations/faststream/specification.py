"""The broker's part of an AsyncAPI document: its channels, with a binding of our own.

AsyncAPI has no binding of this name, so it is an extension, `x-quiver`. FastStream has no place for
bindings that it does not know: the classes that make its documents are taught this one here.
"""

from dataclasses import asdict, dataclass
from typing import Any, Final

from faststream._internal.endpoint.publisher import PublisherSpecification
from faststream._internal.endpoint.subscriber import SubscriberSpecification
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.asyncapi.v2_6_0.schema.bindings import ChannelBinding as Channel2
from faststream.specification.asyncapi.v3_0_0.schema.bindings import ChannelBinding as Channel3
from faststream.specification.schema import Message, Operation, PublisherSpec, SubscriberSpec
from faststream.specification.schema.bindings import ChannelBinding

from quivermq.integrations.faststream.configs import (
    QuiverBrokerConfig,
    QuiverPublisherSpecificationConfig,
    QuiverSubscriberSpecificationConfig,
)

EXTENSION: Final = "x-quiver"


@dataclass
class QuiverBinding:
    """The state of a channel."""

    topic: str
    group: str | None = None
    batch: bool = False


@dataclass
class QuiverChannelBinding(ChannelBinding):
    """Takes ours beside those that FastStream knows."""

    quiver: QuiverBinding | None = None


def _teach(schema: Any) -> None:
    for name in ("from_sub", "from_pub"):
        known = getattr(schema, name)

        def convert(cls: Any, binding: Any, known: Any = known) -> Any:
            if not isinstance(binding, QuiverChannelBinding) or binding.quiver is None:
                return known(binding)
            return cls(**{EXTENSION: {k: v for k, v in asdict(binding.quiver).items() if v}})

        setattr(schema, name, classmethod(convert))


for _schema in (Channel2, Channel3):
    _teach(_schema)


class QuiverSubscriberSpecification(
    SubscriberSpecification[QuiverBrokerConfig, QuiverSubscriberSpecificationConfig]
):
    """Of a subscriber."""

    @property
    def topic(self) -> str:
        return self._outer_config.prefix + self.config.to.topic

    @property
    def channel_labels(self) -> list[str]:
        return [self.topic]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        message = Message(
            title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads())
        )
        binding = QuiverBinding(self.topic, self.config.to.group, self.config.to.batch)
        return {
            self.name: SubscriberSpec(
                address=self.topic,
                description=self.description,
                operation=Operation(message=message, bindings=None),
                bindings=QuiverChannelBinding(quiver=binding),
            )
        }


class QuiverPublisherSpecification(
    PublisherSpecification[QuiverBrokerConfig, QuiverPublisherSpecificationConfig]
):
    """Of a publisher."""

    @property
    def topic(self) -> str:
        return self._outer_config.prefix + self.config.to.topic

    @property
    def name(self) -> str:
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        message = Message(title=f"{self.name}:Message", payload=payload)
        binding = QuiverBinding(self.topic, batch=self.config.to.batch)
        return {
            self.name: PublisherSpec(
                address=self.topic,
                description=self.config.description_,
                operation=Operation(message=message, bindings=None),
                bindings=QuiverChannelBinding(quiver=binding),
            )
        }
