"""The answers of the HTTP API, in the words of the Python client."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

U64 = Annotated[int, PlainSerializer(str, return_type=str)]
"""A string in JSON: JavaScript cannot hold 64 bits in a number."""


class ApiAnswer(BaseModel):
    """The base of every answer."""

    model_config = ConfigDict(from_attributes=True, frozen=True)


class ErrorDetails(ApiAnswer):
    """What went wrong."""

    code: str = Field(description="The name of the error, as in `quivermq.errors`.")
    message: str = Field(description="What was wrong and what to do, for people.")
    retriable: bool = Field(description="Whether the same request may succeed later.")


class ErrorAnswer(ApiAnswer):
    """The body of every answer with a status from 400 up."""

    error: ErrorDetails


class HealthAnswer(ApiAnswer):
    """The process runs and its event loop turns."""

    status: Literal["ok"] = "ok"
    node: int = Field(description="The node id of this broker.")
    cluster_id: str = Field(description="Empty until the broker belongs to a cluster.")
    version: str = Field(description="The release that runs.")


class ReadyAnswer(ApiAnswer):
    """The broker is a member of its cluster and knows a leader of everything."""

    status: Literal["ready"] = "ready"
    node: int = Field(description="The node id of this broker.")
    leader: int = Field(description="The node that leads the metadata partition.")


class NodeAnswer(ApiAnswer):
    """One broker."""

    id: int = Field(description="Its node id.")
    address: str = Field(description="Where clients connect.")
    peer_address: str = Field(description="Where other brokers connect.")
    http_address: str = Field(description="Where its HTTP API is; empty: off.")
    alive: bool = Field(description="Whether the broker that answers has heard it lately.")
    leaders: int = Field(description="Partitions that it leads.")
    replicas: int = Field(description="Partitions that it holds.")
    state: str = Field(description='"serving", "leaving", or "refused" with the reason.')
    version: str = Field(description="The release that it runs.")


class ClusterAnswer(ApiAnswer):
    """The brokers, and who leads them."""

    cluster_id: str = Field(description="Drawn when the cluster was founded.")
    version: U64 = Field(description="Of the catalog; grows with every change.")
    leader: int = Field(
        description="The node that leads the metadata partition; 0: none just then."
    )
    node: int = Field(description="The broker that answers.")
    nodes: list[NodeAnswer] = Field(description="All brokers, by node id.")


class PartitionAnswer(ApiAnswer):
    """One partition, as its leader sees it; null: only its leader knows, and did not answer."""

    partition: int = Field(description="Its number, from 0.")
    leader: int = Field(description="The node that leads it; 0: none just then.")
    replicas: list[int] = Field(description="The nodes that hold it.")
    in_sync: list[int] | None = Field(description="Those that have everything that is committed.")
    target: list[int] = Field(description="Where it is being moved to; empty: it is not.")
    start_offset: U64 | None = Field(description="The first message that is kept.")
    end_offset: U64 | None = Field(description="Behind the last message.")
    size_bytes: U64 | None = Field(description="What the leader's log takes on disk.")
    term: U64 | None = Field(description="Counts its leaders.")
    commit_index: U64 | None = Field(description="The last entry that is committed.")
    trouble: str = Field(description="What is wrong, for people; empty: nothing.")


class RetentionAnswer(ApiAnswer):
    """How long messages are kept; null: no limit."""

    max_age: float | None = Field(description="Seconds.")
    max_messages: U64 | None = Field(description="In each partition.")
    max_bytes: U64 | None = Field(description="Of each partition's log.")
    delete_acked: bool = Field(description="Drop also what every group has done.")
    keep_until_archived: bool = Field(description="Drop only what the archive holds.")


class RateLimitAnswer(ApiAnswer):
    """How fast messages are delivered at most."""

    per_second: float = Field(description="Over all partitions and groups of the topic.")
    burst: int = Field(description="So many may come at once after a pause.")


class TopicAnswer(ApiAnswer):
    """A topic: its settings and its partitions."""

    name: str
    id: str = Field(description="Another one after the topic was deleted and created again.")
    replication: int = Field(description="Replicas of each partition.")
    retention: RetentionAnswer
    rate_limit: RateLimitAnswer | None = Field(description="null: no limit.")
    max_deliveries: int = Field(description="Past it a message goes to the dead-letter topic.")
    dead_letter: str = Field(description="The dead-letter topic.")
    partitions: list[PartitionAnswer] = Field(description="All of them, by number.")


class TopicsAnswer(ApiAnswer):
    """All topics."""

    topics: list[TopicAnswer] = Field(description="By name.")
