"""Every setting of a broker, by name: one model for flags, environment and TOML."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    model_validator,
)

from quivermq.addresses import split_address
from quivermq.errors import InvalidRequest
from quivermq.names import check_zone_name
from quivermq.quantities import parse_duration, parse_size

KIB = 1 << 10
MIB = 1 << 20

Fsync = Literal["always", "interval", "never"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]


def _address(address: str) -> str:
    try:
        split_address(address)
    except InvalidRequest as error:
        raise ValueError(str(error)) from error
    return address


def _address_or_empty(address: str) -> str:
    return _address(address) if address else address


def _addresses_or_empty(addresses: str) -> str:
    return ",".join(_address(part.strip()) for part in addresses.split(",") if part.strip())


def _peers(peers: Any) -> Any:
    """Flags and the environment hold text, `2=host:port,3=host:port`; the rest is as it is."""
    if not isinstance(peers, str):
        return peers
    found = {}
    for part in filter(None, (part.strip() for part in peers.split(","))):
        node, equals, address = part.partition("=")
        if not equals or not node.strip().isdecimal():
            raise ValueError(f"write 2=host:port,3=host:port instead of {peers!r}")
        if int(node) in found:
            raise ValueError(f"node {int(node)} is named twice in {peers!r}")
        found[int(node)] = address.strip()
    return found


def _zone(zone: str) -> str:
    try:
        check_zone_name(zone)
    except InvalidRequest as error:
        raise ValueError(str(error)) from error
    return zone


def _size(value: Any) -> Any:
    return parse_size(value) if isinstance(value, str) else value


def _milliseconds(value: Any) -> Any:
    return round(parse_duration(value, bare="ms") * 1000) if isinstance(value, str) else value


Size = Annotated[int, BeforeValidator(_size)]
"""A number of bytes; text may have a unit: `64MB`."""
Milliseconds = Annotated[int, BeforeValidator(_milliseconds)]
"""Text may have a unit: `10s`."""
Address = Annotated[str, AfterValidator(_address)]
AddressOrEmpty = Annotated[str, AfterValidator(_address_or_empty)]
Addresses = Annotated[str, AfterValidator(_addresses_or_empty)]
NodeId = Annotated[int, Field(ge=1, le=65_535)]
Zone = Annotated[str, AfterValidator(_zone)]


class BrokerSettings(BaseModel):
    """How a broker runs. Durations are in the unit that ends the name; 0 never means "no limit"
    unless it says so."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    node_id: NodeId = Field(1, description="This broker's number in its cluster.")
    data_dir: str = Field("./data", description="Where everything durable is kept.")
    listen: Address = Field("127.0.0.1:7600", description="Where clients connect.")
    peer_listen: Address = Field("127.0.0.1:7700", description="Where other brokers connect.")
    http: AddressOrEmpty = Field(
        "127.0.0.1:9600", description="Health, metrics and the HTTP API; empty: off."
    )
    grpc: AddressOrEmpty = Field("127.0.0.1:7650", description="The gRPC API; empty: off.")
    advertise: AddressOrEmpty = Field(
        "", description="The address that clients are told, if not `listen`."
    )
    advertise_peer: AddressOrEmpty = Field(
        "", description="The address that other brokers are told, if not `peer_listen`."
    )
    advertise_http: AddressOrEmpty = Field(
        "", description="The address that people are told, if not `http`."
    )

    peers: Annotated[dict[NodeId, Address], BeforeValidator(_peers)] = Field(
        default_factory=dict,
        description="The other founding brokers of a static cluster: node id to peer address. "
        "These addresses win over those that the brokers advertise.",
    )
    join: Addresses = Field(
        "",
        description="A broker of the cluster to become a member of; of a gateway: its brokers, "
        "separated by commas.",
    )
    gateway: bool = Field(
        False, description="Hold no data, and serve clients of the cluster that `join` names."
    )
    workers: int = Field(
        1,
        ge=1,
        le=64,
        description="Brokers that `quiver serve` runs here, with numbers, ports and folders in a "
        "row.",
    )
    zone: Zone = Field(
        "",
        description="Where this broker runs, as eu-1a: replicas of a partition go to different "
        "zones.",
    )

    tls_cert: str = Field("", description="The broker's certificate, in PEM format; empty: no TLS.")
    tls_key: str = Field("", description="Its key, if that is not in the same file.")
    tls_ca: str = Field(
        "",
        description="The CA certificates by which brokers check each other's; empty: the system's.",
    )
    peer_tls: bool = Field(
        False, description="Brokers accept each other only with certificates of `tls_ca`."
    )
    tls_reload_ms: Milliseconds = Field(
        2_000, ge=10, description="How often these files are looked at: changed ones are loaded."
    )
    users: bool = Field(False, description="Clients need a token, and may do what it is granted.")
    insecure: bool = Field(
        False, description="Listen for other machines though everyone there may do anything."
    )
    cluster_secret: SecretStr = Field(
        SecretStr(""), description="By this the brokers of a cluster know each other; on each."
    )
    cluster_secret_file: str = Field("", description="A file with the secret, instead of it.")
    user_connections_max: int = Field(
        0, ge=0, description="Connections of one user to this broker; 0: no limit."
    )
    user_requests_per_second: int = Field(
        0, ge=0, description="Requests of one user to this broker; 0: no limit."
    )
    user_bytes_per_second: Size = Field(
        0, ge=0, description="Bytes that one user sends to and gets from it; 0: no limit."
    )

    fsync: Fsync = Field("always", description="When a write counts as stored.")
    fsync_interval_ms: Milliseconds = Field(
        100, ge=1, description="How often `fsync = interval` syncs."
    )

    auto_create_topics: bool = Field(
        False, description="Create a topic that is produced to or consumed."
    )
    default_partitions: int = Field(1, ge=1, le=10_000, description="Partitions of a new topic.")
    partitions_max: int = Field(10_000, ge=1, description="Partitions that one topic may have.")

    tick_ms: Milliseconds = Field(
        100, ge=10, description="The unit of heartbeats and of election timeouts."
    )
    election_ticks: int = Field(
        10, ge=2, description="An election starts after 1 to 2 times as many ticks of silence."
    )
    segment_bytes: Size = Field(64 * MIB, ge=64 * KIB, description="A segment is sealed past this.")
    message_bytes_max: Size = Field(8 * MIB, ge=1, description="The largest message.")
    batch_bytes_max: Size = Field(16 * MIB, ge=1, description="The largest batch.")
    retention_interval_ms: Milliseconds = Field(
        5_000, ge=10, description="How often old data is dropped."
    )

    connections_max: int = Field(1_000, ge=1, description="Clients that may be connected.")
    peer_connections_max: int = Field(
        400, ge=4, description="Connections of other brokers: each has two, and four for a moment."
    )
    requests_max: int = Field(1_024, ge=1, description="Open requests of one connection.")
    request_bytes_max: Size = Field(64 * MIB, ge=1, description="The bytes of such requests.")
    unread_bytes_max: Size = Field(
        64 * MIB, ge=1, description="Bytes of answers that a client has not taken."
    )
    idle_timeout_ms: Milliseconds = Field(
        600_000, ge=100, description="A silent connection is closed."
    )
    hello_timeout_ms: Milliseconds = Field(
        5_000, ge=10, description="A connection must say hello by then."
    )
    http_connections_max: int = Field(200, ge=1, description="HTTP clients that may be connected.")
    http_body_bytes_max: Size = Field(MIB, ge=1, description="The largest body of an HTTP request.")
    http_timeout_ms: Milliseconds = Field(
        10_000, ge=10, description="An HTTP request must be sent, and its answer taken, by then."
    )
    grpc_calls_max: int = Field(
        1_000, ge=1, description="gRPC calls and sessions that may be open at a time."
    )
    request_timeout_ms: Milliseconds = Field(
        10_000, ge=1, description="For requests that name no timeout."
    )
    outbox_bytes_max: Size = Field(
        64 * MIB, ge=1, description="Bytes that may wait for one slow peer."
    )
    rebalance_bytes_per_second: Size = Field(
        64 * MIB,
        ge=1,
        description=(
            "The rate at which partitions are moved, and brokers that were away get what they "
            "missed while others can do without them."
        ),
    )
    stop_timeout_ms: Milliseconds = Field(
        10_000, ge=0, description="How long a graceful stop may take."
    )

    busy_poll_us: int = Field(
        200,
        ge=0,
        le=10_000,
        description="After a request, look for the next for so many microseconds before sleeping, "
        "as long as that pays; 0: never.",
    )
    events: bool = Field(
        True, description="Tell what happens in the cluster, in the topic `_events`."
    )
    stall_budget_ms: Milliseconds = Field(
        200, ge=20, description="Work that holds the event loop for longer is logged."
    )

    log_level: LogLevel = Field(
        "info", description="The lowest level that is logged to standard error."
    )
    log_format: LogFormat = Field("text", description="Lines for people, or JSON for machines.")

    tracing: bool = Field(
        False, description="Export spans, as OpenTelemetry's variables say; needs quivermq[otel]."
    )

    @model_validator(mode="after")
    def _is_one_cluster(self) -> Self:
        if self.node_id in self.peers:
            raise ValueError(f"peers names node {self.node_id} itself: name only the others")
        if self.peers and self.join:
            raise ValueError("peers founds a cluster and join enters one: set only one of them")
        if self.gateway and not self.join:
            raise ValueError(
                "a gateway serves the cluster of other brokers: name some of them by their client "
                "addresses, --join HOST:PORT,..."
            )
        if self.gateway and self.workers > 1:
            raise ValueError("workers are brokers: start each gateway by itself")
        if "," in self.join and not self.gateway:
            raise ValueError("a broker joins a cluster by one address: only a gateway has several")
        has_secret = self.cluster_secret.get_secret_value() or self.cluster_secret_file
        if self.users and (self.peers or self.join) and not has_secret:
            raise ValueError(
                "users in a cluster of several brokers need a cluster_secret, the same on each, "
                "or anyone could pose as a broker"
            )
        return self
