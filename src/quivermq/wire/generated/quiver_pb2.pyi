from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACK: _ClassVar[Outcome]
    NACK: _ClassVar[Outcome]
    REJECT: _ClassVar[Outcome]
    RELEASE: _ClassVar[Outcome]
    EXTEND: _ClassVar[Outcome]
ACK: Outcome
NACK: Outcome
REJECT: Outcome
RELEASE: Outcome
EXTEND: Outcome

class Request(_message.Message):
    __slots__ = ("id", "timeout_ms", "forwarded", "direct", "user", "traceparent", "tracestate", "hello", "cancel", "ping", "map", "prove", "create_topic", "alter_topic", "delete_topic", "describe_topics", "describe_partitions", "new_producer", "produce", "fetch", "find_offset", "list_offsets", "commit_offset", "committed_offsets", "claim", "poll", "await_ready", "settle", "release_consumer", "describe_groups", "seek_group", "delete_group", "list_delayed", "cancel_delayed", "redrive", "take_tokens", "sticky_beat", "describe_sticky", "list_dead", "redrive_to", "revive", "stats", "bootstrap", "join_cluster", "register_broker", "remove_broker", "replace_broker", "rebalance", "transfer", "reconfigure", "upgrade_cluster", "set_log_level", "add_user", "remove_user", "grant_user", "revoke_user", "list_users", "list_user_records", "export_catalog", "export_partition", "restore_catalog", "restore_topic", "restore_frames", "finish_restore")
    ID_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    DIRECT_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TRACESTATE_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    MAP_FIELD_NUMBER: _ClassVar[int]
    PROVE_FIELD_NUMBER: _ClassVar[int]
    CREATE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    ALTER_TOPIC_FIELD_NUMBER: _ClassVar[int]
    DELETE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_TOPICS_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    NEW_PRODUCER_FIELD_NUMBER: _ClassVar[int]
    PRODUCE_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    FIND_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIST_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    POLL_FIELD_NUMBER: _ClassVar[int]
    AWAIT_READY_FIELD_NUMBER: _ClassVar[int]
    SETTLE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_CONSUMER_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    SEEK_GROUP_FIELD_NUMBER: _ClassVar[int]
    DELETE_GROUP_FIELD_NUMBER: _ClassVar[int]
    LIST_DELAYED_FIELD_NUMBER: _ClassVar[int]
    CANCEL_DELAYED_FIELD_NUMBER: _ClassVar[int]
    REDRIVE_FIELD_NUMBER: _ClassVar[int]
    TAKE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STICKY_BEAT_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_STICKY_FIELD_NUMBER: _ClassVar[int]
    LIST_DEAD_FIELD_NUMBER: _ClassVar[int]
    REDRIVE_TO_FIELD_NUMBER: _ClassVar[int]
    REVIVE_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    BOOTSTRAP_FIELD_NUMBER: _ClassVar[int]
    JOIN_CLUSTER_FIELD_NUMBER: _ClassVar[int]
    REGISTER_BROKER_FIELD_NUMBER: _ClassVar[int]
    REMOVE_BROKER_FIELD_NUMBER: _ClassVar[int]
    REPLACE_BROKER_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    RECONFIGURE_FIELD_NUMBER: _ClassVar[int]
    UPGRADE_CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SET_LOG_LEVEL_FIELD_NUMBER: _ClassVar[int]
    ADD_USER_FIELD_NUMBER: _ClassVar[int]
    REMOVE_USER_FIELD_NUMBER: _ClassVar[int]
    GRANT_USER_FIELD_NUMBER: _ClassVar[int]
    REVOKE_USER_FIELD_NUMBER: _ClassVar[int]
    LIST_USERS_FIELD_NUMBER: _ClassVar[int]
    LIST_USER_RECORDS_FIELD_NUMBER: _ClassVar[int]
    EXPORT_CATALOG_FIELD_NUMBER: _ClassVar[int]
    EXPORT_PARTITION_FIELD_NUMBER: _ClassVar[int]
    RESTORE_CATALOG_FIELD_NUMBER: _ClassVar[int]
    RESTORE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FRAMES_FIELD_NUMBER: _ClassVar[int]
    FINISH_RESTORE_FIELD_NUMBER: _ClassVar[int]
    id: int
    timeout_ms: int
    forwarded: bool
    direct: bool
    user: str
    traceparent: str
    tracestate: str
    hello: Hello
    cancel: Cancel
    ping: Ping
    map: MapQuery
    prove: Prove
    create_topic: CreateTopic
    alter_topic: AlterTopic
    delete_topic: DeleteTopic
    describe_topics: DescribeTopics
    describe_partitions: DescribePartitions
    new_producer: NewProducer
    produce: Produce
    fetch: Fetch
    find_offset: FindOffset
    list_offsets: ListOffsets
    commit_offset: CommitOffset
    committed_offsets: CommittedOffsets
    claim: Claim
    poll: Poll
    await_ready: AwaitReady
    settle: Settle
    release_consumer: ReleaseConsumer
    describe_groups: DescribeGroups
    seek_group: SeekGroup
    delete_group: DeleteGroup
    list_delayed: ListDelayed
    cancel_delayed: CancelDelayed
    redrive: Redrive
    take_tokens: TakeTokens
    sticky_beat: StickyBeat
    describe_sticky: DescribeSticky
    list_dead: ListDead
    redrive_to: Redrive
    revive: Revive
    stats: Stats
    bootstrap: Bootstrap
    join_cluster: JoinCluster
    register_broker: RegisterBroker
    remove_broker: RemoveBroker
    replace_broker: ReplaceBroker
    rebalance: Rebalance
    transfer: Transfer
    reconfigure: Reconfigure
    upgrade_cluster: UpgradeCluster
    set_log_level: SetLogLevel
    add_user: AddUser
    remove_user: RemoveUser
    grant_user: GrantUser
    revoke_user: RevokeUser
    list_users: ListUsers
    list_user_records: ListUserRecords
    export_catalog: ExportCatalog
    export_partition: ExportPartition
    restore_catalog: RestoreCatalog
    restore_topic: RestoreTopic
    restore_frames: RestoreFrames
    finish_restore: FinishRestore
    def __init__(self, id: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., forwarded: bool = ..., direct: bool = ..., user: _Optional[str] = ..., traceparent: _Optional[str] = ..., tracestate: _Optional[str] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., map: _Optional[_Union[MapQuery, _Mapping]] = ..., prove: _Optional[_Union[Prove, _Mapping]] = ..., create_topic: _Optional[_Union[CreateTopic, _Mapping]] = ..., alter_topic: _Optional[_Union[AlterTopic, _Mapping]] = ..., delete_topic: _Optional[_Union[DeleteTopic, _Mapping]] = ..., describe_topics: _Optional[_Union[DescribeTopics, _Mapping]] = ..., describe_partitions: _Optional[_Union[DescribePartitions, _Mapping]] = ..., new_producer: _Optional[_Union[NewProducer, _Mapping]] = ..., produce: _Optional[_Union[Produce, _Mapping]] = ..., fetch: _Optional[_Union[Fetch, _Mapping]] = ..., find_offset: _Optional[_Union[FindOffset, _Mapping]] = ..., list_offsets: _Optional[_Union[ListOffsets, _Mapping]] = ..., commit_offset: _Optional[_Union[CommitOffset, _Mapping]] = ..., committed_offsets: _Optional[_Union[CommittedOffsets, _Mapping]] = ..., claim: _Optional[_Union[Claim, _Mapping]] = ..., poll: _Optional[_Union[Poll, _Mapping]] = ..., await_ready: _Optional[_Union[AwaitReady, _Mapping]] = ..., settle: _Optional[_Union[Settle, _Mapping]] = ..., release_consumer: _Optional[_Union[ReleaseConsumer, _Mapping]] = ..., describe_groups: _Optional[_Union[DescribeGroups, _Mapping]] = ..., seek_group: _Optional[_Union[SeekGroup, _Mapping]] = ..., delete_group: _Optional[_Union[DeleteGroup, _Mapping]] = ..., list_delayed: _Optional[_Union[ListDelayed, _Mapping]] = ..., cancel_delayed: _Optional[_Union[CancelDelayed, _Mapping]] = ..., redrive: _Optional[_Union[Redrive, _Mapping]] = ..., take_tokens: _Optional[_Union[TakeTokens, _Mapping]] = ..., sticky_beat: _Optional[_Union[StickyBeat, _Mapping]] = ..., describe_sticky: _Optional[_Union[DescribeSticky, _Mapping]] = ..., list_dead: _Optional[_Union[ListDead, _Mapping]] = ..., redrive_to: _Optional[_Union[Redrive, _Mapping]] = ..., revive: _Optional[_Union[Revive, _Mapping]] = ..., stats: _Optional[_Union[Stats, _Mapping]] = ..., bootstrap: _Optional[_Union[Bootstrap, _Mapping]] = ..., join_cluster: _Optional[_Union[JoinCluster, _Mapping]] = ..., register_broker: _Optional[_Union[RegisterBroker, _Mapping]] = ..., remove_broker: _Optional[_Union[RemoveBroker, _Mapping]] = ..., replace_broker: _Optional[_Union[ReplaceBroker, _Mapping]] = ..., rebalance: _Optional[_Union[Rebalance, _Mapping]] = ..., transfer: _Optional[_Union[Transfer, _Mapping]] = ..., reconfigure: _Optional[_Union[Reconfigure, _Mapping]] = ..., upgrade_cluster: _Optional[_Union[UpgradeCluster, _Mapping]] = ..., set_log_level: _Optional[_Union[SetLogLevel, _Mapping]] = ..., add_user: _Optional[_Union[AddUser, _Mapping]] = ..., remove_user: _Optional[_Union[RemoveUser, _Mapping]] = ..., grant_user: _Optional[_Union[GrantUser, _Mapping]] = ..., revoke_user: _Optional[_Union[RevokeUser, _Mapping]] = ..., list_users: _Optional[_Union[ListUsers, _Mapping]] = ..., list_user_records: _Optional[_Union[ListUserRecords, _Mapping]] = ..., export_catalog: _Optional[_Union[ExportCatalog, _Mapping]] = ..., export_partition: _Optional[_Union[ExportPartition, _Mapping]] = ..., restore_catalog: _Optional[_Union[RestoreCatalog, _Mapping]] = ..., restore_topic: _Optional[_Union[RestoreTopic, _Mapping]] = ..., restore_frames: _Optional[_Union[RestoreFrames, _Mapping]] = ..., finish_restore: _Optional[_Union[FinishRestore, _Mapping]] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ("id", "error", "welcome", "done", "challenge", "map", "topics_described", "partitions_described", "producer_granted", "produced", "fetched", "offset_found", "offsets_listed", "offsets_committed", "claimed", "polled", "ready", "settled", "groups_described", "group_sought", "delayed_listed", "delayed_cancelled", "redriven", "tokens_taken", "sticky_state", "sticky_described", "dead_listed", "revived", "stats_report", "broker_registered", "rebalance_progress", "cluster_upgraded", "log_levels", "user_added", "users_listed", "user_records_listed", "catalog_exported", "partition_exported", "catalog_restored", "topic_restoring", "frames_restored")
    ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    MAP_FIELD_NUMBER: _ClassVar[int]
    TOPICS_DESCRIBED_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_DESCRIBED_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_GRANTED_FIELD_NUMBER: _ClassVar[int]
    PRODUCED_FIELD_NUMBER: _ClassVar[int]
    FETCHED_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FOUND_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_LISTED_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_FIELD_NUMBER: _ClassVar[int]
    POLLED_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    GROUPS_DESCRIBED_FIELD_NUMBER: _ClassVar[int]
    GROUP_SOUGHT_FIELD_NUMBER: _ClassVar[int]
    DELAYED_LISTED_FIELD_NUMBER: _ClassVar[int]
    DELAYED_CANCELLED_FIELD_NUMBER: _ClassVar[int]
    REDRIVEN_FIELD_NUMBER: _ClassVar[int]
    TOKENS_TAKEN_FIELD_NUMBER: _ClassVar[int]
    STICKY_STATE_FIELD_NUMBER: _ClassVar[int]
    STICKY_DESCRIBED_FIELD_NUMBER: _ClassVar[int]
    DEAD_LISTED_FIELD_NUMBER: _ClassVar[int]
    REVIVED_FIELD_NUMBER: _ClassVar[int]
    STATS_REPORT_FIELD_NUMBER: _ClassVar[int]
    BROKER_REGISTERED_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_UPGRADED_FIELD_NUMBER: _ClassVar[int]
    LOG_LEVELS_FIELD_NUMBER: _ClassVar[int]
    USER_ADDED_FIELD_NUMBER: _ClassVar[int]
    USERS_LISTED_FIELD_NUMBER: _ClassVar[int]
    USER_RECORDS_LISTED_FIELD_NUMBER: _ClassVar[int]
    CATALOG_EXPORTED_FIELD_NUMBER: _ClassVar[int]
    PARTITION_EXPORTED_FIELD_NUMBER: _ClassVar[int]
    CATALOG_RESTORED_FIELD_NUMBER: _ClassVar[int]
    TOPIC_RESTORING_FIELD_NUMBER: _ClassVar[int]
    FRAMES_RESTORED_FIELD_NUMBER: _ClassVar[int]
    id: int
    error: Error
    welcome: Welcome
    done: Done
    challenge: Challenge
    map: ClusterMap
    topics_described: TopicsDescribed
    partitions_described: PartitionsDescribed
    producer_granted: ProducerGranted
    produced: Produced
    fetched: Fetched
    offset_found: OffsetFound
    offsets_listed: OffsetsListed
    offsets_committed: OffsetsCommitted
    claimed: Claimed
    polled: Polled
    ready: Ready
    settled: Settled
    groups_described: GroupsDescribed
    group_sought: GroupSought
    delayed_listed: DelayedListed
    delayed_cancelled: DelayedCancelled
    redriven: Redriven
    tokens_taken: TokensTaken
    sticky_state: StickyState
    sticky_described: StickyDescribed
    dead_listed: DeadListed
    revived: Revived
    stats_report: StatsReport
    broker_registered: BrokerRegistered
    rebalance_progress: RebalanceProgress
    cluster_upgraded: ClusterUpgraded
    log_levels: LogLevels
    user_added: UserAdded
    users_listed: UsersListed
    user_records_listed: UserRecordsListed
    catalog_exported: CatalogExported
    partition_exported: PartitionExported
    catalog_restored: CatalogRestored
    topic_restoring: TopicRestoring
    frames_restored: FramesRestored
    def __init__(self, id: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., challenge: _Optional[_Union[Challenge, _Mapping]] = ..., map: _Optional[_Union[ClusterMap, _Mapping]] = ..., topics_described: _Optional[_Union[TopicsDescribed, _Mapping]] = ..., partitions_described: _Optional[_Union[PartitionsDescribed, _Mapping]] = ..., producer_granted: _Optional[_Union[ProducerGranted, _Mapping]] = ..., produced: _Optional[_Union[Produced, _Mapping]] = ..., fetched: _Optional[_Union[Fetched, _Mapping]] = ..., offset_found: _Optional[_Union[OffsetFound, _Mapping]] = ..., offsets_listed: _Optional[_Union[OffsetsListed, _Mapping]] = ..., offsets_committed: _Optional[_Union[OffsetsCommitted, _Mapping]] = ..., claimed: _Optional[_Union[Claimed, _Mapping]] = ..., polled: _Optional[_Union[Polled, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., settled: _Optional[_Union[Settled, _Mapping]] = ..., groups_described: _Optional[_Union[GroupsDescribed, _Mapping]] = ..., group_sought: _Optional[_Union[GroupSought, _Mapping]] = ..., delayed_listed: _Optional[_Union[DelayedListed, _Mapping]] = ..., delayed_cancelled: _Optional[_Union[DelayedCancelled, _Mapping]] = ..., redriven: _Optional[_Union[Redriven, _Mapping]] = ..., tokens_taken: _Optional[_Union[TokensTaken, _Mapping]] = ..., sticky_state: _Optional[_Union[StickyState, _Mapping]] = ..., sticky_described: _Optional[_Union[StickyDescribed, _Mapping]] = ..., dead_listed: _Optional[_Union[DeadListed, _Mapping]] = ..., revived: _Optional[_Union[Revived, _Mapping]] = ..., stats_report: _Optional[_Union[StatsReport, _Mapping]] = ..., broker_registered: _Optional[_Union[BrokerRegistered, _Mapping]] = ..., rebalance_progress: _Optional[_Union[RebalanceProgress, _Mapping]] = ..., cluster_upgraded: _Optional[_Union[ClusterUpgraded, _Mapping]] = ..., log_levels: _Optional[_Union[LogLevels, _Mapping]] = ..., user_added: _Optional[_Union[UserAdded, _Mapping]] = ..., users_listed: _Optional[_Union[UsersListed, _Mapping]] = ..., user_records_listed: _Optional[_Union[UserRecordsListed, _Mapping]] = ..., catalog_exported: _Optional[_Union[CatalogExported, _Mapping]] = ..., partition_exported: _Optional[_Union[PartitionExported, _Mapping]] = ..., catalog_restored: _Optional[_Union[CatalogRestored, _Mapping]] = ..., topic_restoring: _Optional[_Union[TopicRestoring, _Mapping]] = ..., frames_restored: _Optional[_Union[FramesRestored, _Mapping]] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message", "retriable", "leader", "leader_address", "earliest", "end", "expected", "may_be_forgotten")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRIABLE_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    MAY_BE_FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    retriable: bool
    leader: int
    leader_address: str
    earliest: int
    end: int
    expected: int
    may_be_forgotten: bool
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., retriable: bool = ..., leader: _Optional[int] = ..., leader_address: _Optional[str] = ..., earliest: _Optional[int] = ..., end: _Optional[int] = ..., expected: _Optional[int] = ..., may_be_forgotten: bool = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "protocol_min", "client", "version", "features", "token", "nonce")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MIN_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    protocol_min: int
    client: str
    version: str
    features: _containers.RepeatedScalarFieldContainer[str]
    token: str
    nonce: bytes
    def __init__(self, protocol: _Optional[int] = ..., protocol_min: _Optional[int] = ..., client: _Optional[str] = ..., version: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ..., token: _Optional[str] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class Challenge(_message.Message):
    __slots__ = ("nonce", "proof")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    proof: bytes
    def __init__(self, nonce: _Optional[bytes] = ..., proof: _Optional[bytes] = ...) -> None: ...

class Prove(_message.Message):
    __slots__ = ("proof",)
    PROOF_FIELD_NUMBER: _ClassVar[int]
    proof: bytes
    def __init__(self, proof: _Optional[bytes] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol", "version", "features", "node", "cluster_id", "packet_bytes_max", "message_bytes_max", "batch_bytes_max", "requests_max", "idle_timeout_ms")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    PACKET_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    BATCH_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_MAX_FIELD_NUMBER: _ClassVar[int]
    IDLE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    features: _containers.RepeatedScalarFieldContainer[str]
    node: int
    cluster_id: str
    packet_bytes_max: int
    message_bytes_max: int
    batch_bytes_max: int
    requests_max: int
    idle_timeout_ms: int
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ..., node: _Optional[int] = ..., cluster_id: _Optional[str] = ..., packet_bytes_max: _Optional[int] = ..., message_bytes_max: _Optional[int] = ..., batch_bytes_max: _Optional[int] = ..., requests_max: _Optional[int] = ..., idle_timeout_ms: _Optional[int] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MapQuery(_message.Message):
    __slots__ = ("topics", "auto_create", "brokers_only", "latest")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    AUTO_CREATE_FIELD_NUMBER: _ClassVar[int]
    BROKERS_ONLY_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    auto_create: bool
    brokers_only: bool
    latest: bool
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., auto_create: bool = ..., brokers_only: bool = ..., latest: bool = ...) -> None: ...

class Broker(_message.Message):
    __slots__ = ("id", "address", "peer_address", "http_address", "alive", "leaders", "replicas", "state", "version", "level_min", "level_max", "hidden_address", "zone", "machine")
    ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PEER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    LEADERS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LEVEL_MIN_FIELD_NUMBER: _ClassVar[int]
    LEVEL_MAX_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    id: int
    address: str
    peer_address: str
    http_address: str
    alive: bool
    leaders: int
    replicas: int
    state: str
    version: str
    level_min: int
    level_max: int
    hidden_address: str
    zone: str
    machine: str
    def __init__(self, id: _Optional[int] = ..., address: _Optional[str] = ..., peer_address: _Optional[str] = ..., http_address: _Optional[str] = ..., alive: bool = ..., leaders: _Optional[int] = ..., replicas: _Optional[int] = ..., state: _Optional[str] = ..., version: _Optional[str] = ..., level_min: _Optional[int] = ..., level_max: _Optional[int] = ..., hidden_address: _Optional[str] = ..., zone: _Optional[str] = ..., machine: _Optional[str] = ...) -> None: ...

class PartitionMap(_message.Message):
    __slots__ = ("partition", "leader", "replicas", "target")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    partition: int
    leader: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    target: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, partition: _Optional[int] = ..., leader: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ..., target: _Optional[_Iterable[int]] = ...) -> None: ...

class TopicMap(_message.Message):
    __slots__ = ("name", "id", "replication", "settings", "partitions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    id: bytes
    replication: int
    settings: TopicSettings
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionMap]
    def __init__(self, name: _Optional[str] = ..., id: _Optional[bytes] = ..., replication: _Optional[int] = ..., settings: _Optional[_Union[TopicSettings, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[PartitionMap, _Mapping]]] = ...) -> None: ...

class ClusterMap(_message.Message):
    __slots__ = ("cluster_id", "version", "leader", "brokers", "topics", "node", "level", "release")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    version: int
    leader: int
    brokers: _containers.RepeatedCompositeFieldContainer[Broker]
    topics: _containers.RepeatedCompositeFieldContainer[TopicMap]
    node: int
    level: int
    release: str
    def __init__(self, cluster_id: _Optional[str] = ..., version: _Optional[int] = ..., leader: _Optional[int] = ..., brokers: _Optional[_Iterable[_Union[Broker, _Mapping]]] = ..., topics: _Optional[_Iterable[_Union[TopicMap, _Mapping]]] = ..., node: _Optional[int] = ..., level: _Optional[int] = ..., release: _Optional[str] = ...) -> None: ...

class TopicSettings(_message.Message):
    __slots__ = ("retention_ms", "retention_messages", "retention_bytes", "delete_acked", "keep_until_archived", "rate_per_second", "rate_burst", "max_deliveries", "dead_letter", "retry_first_ms", "retry_base_ms", "retry_longest_ms", "group_idle_ms", "drop_expired")
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    RETENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    DELETE_ACKED_FIELD_NUMBER: _ClassVar[int]
    KEEP_UNTIL_ARCHIVED_FIELD_NUMBER: _ClassVar[int]
    RATE_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    RATE_BURST_FIELD_NUMBER: _ClassVar[int]
    MAX_DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIRST_MS_FIELD_NUMBER: _ClassVar[int]
    RETRY_BASE_MS_FIELD_NUMBER: _ClassVar[int]
    RETRY_LONGEST_MS_FIELD_NUMBER: _ClassVar[int]
    GROUP_IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    DROP_EXPIRED_FIELD_NUMBER: _ClassVar[int]
    retention_ms: int
    retention_messages: int
    retention_bytes: int
    delete_acked: bool
    keep_until_archived: bool
    rate_per_second: float
    rate_burst: int
    max_deliveries: int
    dead_letter: str
    retry_first_ms: int
    retry_base_ms: int
    retry_longest_ms: int
    group_idle_ms: int
    drop_expired: bool
    def __init__(self, retention_ms: _Optional[int] = ..., retention_messages: _Optional[int] = ..., retention_bytes: _Optional[int] = ..., delete_acked: bool = ..., keep_until_archived: bool = ..., rate_per_second: _Optional[float] = ..., rate_burst: _Optional[int] = ..., max_deliveries: _Optional[int] = ..., dead_letter: _Optional[str] = ..., retry_first_ms: _Optional[int] = ..., retry_base_ms: _Optional[int] = ..., retry_longest_ms: _Optional[int] = ..., group_idle_ms: _Optional[int] = ..., drop_expired: bool = ...) -> None: ...

class CreateTopic(_message.Message):
    __slots__ = ("name", "partitions", "replication", "settings")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: int
    replication: int
    settings: TopicSettings
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[int] = ..., replication: _Optional[int] = ..., settings: _Optional[_Union[TopicSettings, _Mapping]] = ...) -> None: ...

class AlterTopic(_message.Message):
    __slots__ = ("name", "partitions", "settings")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: int
    settings: TopicSettings
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[int] = ..., settings: _Optional[_Union[TopicSettings, _Mapping]] = ...) -> None: ...

class DeleteTopic(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DescribeTopics(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topics: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribePartitions(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionName]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionName, _Mapping]]] = ...) -> None: ...

class PartitionName(_message.Message):
    __slots__ = ("topic", "partition")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ...) -> None: ...

class PartitionDescription(_message.Message):
    __slots__ = ("topic", "partition", "leader", "replicas", "start_offset", "end_offset", "size_bytes", "term", "commit_index", "in_sync", "trouble", "incarnation", "life")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    leader: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    start_offset: int
    end_offset: int
    size_bytes: int
    term: int
    commit_index: int
    in_sync: _containers.RepeatedScalarFieldContainer[int]
    trouble: str
    incarnation: int
    life: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., leader: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., size_bytes: _Optional[int] = ..., term: _Optional[int] = ..., commit_index: _Optional[int] = ..., in_sync: _Optional[_Iterable[int]] = ..., trouble: _Optional[str] = ..., incarnation: _Optional[int] = ..., life: _Optional[int] = ...) -> None: ...

class TopicDescription(_message.Message):
    __slots__ = ("topic", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: TopicMap
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionDescription]
    def __init__(self, topic: _Optional[_Union[TopicMap, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[PartitionDescription, _Mapping]]] = ...) -> None: ...

class TopicsDescribed(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicDescription]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicDescription, _Mapping]]] = ...) -> None: ...

class PartitionsDescribed(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionDescription]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionDescription, _Mapping]]] = ...) -> None: ...

class NewProducer(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProducerGranted(_message.Message):
    __slots__ = ("producer_id", "producer_epoch")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    producer_epoch: int
    def __init__(self, producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ...) -> None: ...

class Produce(_message.Message):
    __slots__ = ("topic", "topic_id", "partition")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    partition: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ...) -> None: ...

class Produced(_message.Message):
    __slots__ = ("batches",)
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[Stored]
    def __init__(self, batches: _Optional[_Iterable[_Union[Stored, _Mapping]]] = ...) -> None: ...

class Stored(_message.Message):
    __slots__ = ("first_offset", "count", "timestamp_ms", "is_repeat")
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    IS_REPEAT_FIELD_NUMBER: _ClassVar[int]
    first_offset: int
    count: int
    timestamp_ms: int
    is_repeat: bool
    def __init__(self, first_offset: _Optional[int] = ..., count: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., is_repeat: bool = ...) -> None: ...

class Fetch(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "offset", "bytes_max", "wait_ms", "follower_ok", "group", "epoch", "stop", "restoring")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    FOLLOWER_OK_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    RESTORING_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    partition: int
    offset: int
    bytes_max: int
    wait_ms: int
    follower_ok: bool
    group: str
    epoch: int
    stop: int
    restoring: bool
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., bytes_max: _Optional[int] = ..., wait_ms: _Optional[int] = ..., follower_ok: bool = ..., group: _Optional[str] = ..., epoch: _Optional[int] = ..., stop: _Optional[int] = ..., restoring: bool = ...) -> None: ...

class Fetched(_message.Message):
    __slots__ = ("next_offset", "end_offset", "start_offset")
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    next_offset: int
    end_offset: int
    start_offset: int
    def __init__(self, next_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., start_offset: _Optional[int] = ...) -> None: ...

class FindOffset(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "earliest", "latest", "timestamp_ms", "follower_ok")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    FOLLOWER_OK_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    partition: int
    earliest: bool
    latest: bool
    timestamp_ms: int
    follower_ok: bool
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., earliest: bool = ..., latest: bool = ..., timestamp_ms: _Optional[int] = ..., follower_ok: bool = ...) -> None: ...

class OffsetFound(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    def __init__(self, offset: _Optional[int] = ...) -> None: ...

class ListOffsets(_message.Message):
    __slots__ = ("topic", "topic_id", "positions", "wait_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    positions: _containers.RepeatedCompositeFieldContainer[Position]
    wait_ms: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., positions: _Optional[_Iterable[_Union[Position, _Mapping]]] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("partition", "offset")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class OffsetsListed(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[Held]
    def __init__(self, partitions: _Optional[_Iterable[_Union[Held, _Mapping]]] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("partition", "start", "end")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    partition: int
    start: int
    end: int
    def __init__(self, partition: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class CommitOffset(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "group", "offset", "epoch")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    partition: int
    group: str
    offset: int
    epoch: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., group: _Optional[str] = ..., offset: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class Claim(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "group", "epoch")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    partition: int
    group: str
    epoch: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., group: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class Claimed(_message.Message):
    __slots__ = ("offset", "has_committed")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    HAS_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    offset: int
    has_committed: bool
    def __init__(self, offset: _Optional[int] = ..., has_committed: bool = ...) -> None: ...

class CommittedOffsets(_message.Message):
    __slots__ = ("topic", "group", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class OffsetsCommitted(_message.Message):
    __slots__ = ("offsets",)
    class OffsetsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.ScalarMap[int, int]
    def __init__(self, offsets: _Optional[_Mapping[int, int]] = ...) -> None: ...

class Poll(_message.Message):
    __slots__ = ("topic", "topic_id", "partitions", "group", "consumer", "consumer_name", "messages_max", "bytes_max", "wait_ms", "visibility_ms", "auto_ack", "start_latest")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_NAME_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_MAX_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_MS_FIELD_NUMBER: _ClassVar[int]
    AUTO_ACK_FIELD_NUMBER: _ClassVar[int]
    START_LATEST_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    partitions: _containers.RepeatedScalarFieldContainer[int]
    group: str
    consumer: int
    consumer_name: str
    messages_max: int
    bytes_max: int
    wait_ms: int
    visibility_ms: int
    auto_ack: bool
    start_latest: bool
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partitions: _Optional[_Iterable[int]] = ..., group: _Optional[str] = ..., consumer: _Optional[int] = ..., consumer_name: _Optional[str] = ..., messages_max: _Optional[int] = ..., bytes_max: _Optional[int] = ..., wait_ms: _Optional[int] = ..., visibility_ms: _Optional[int] = ..., auto_ack: bool = ..., start_latest: bool = ...) -> None: ...

class Polled(_message.Message):
    __slots__ = ("leased", "throttled_ms", "elsewhere", "traceparent")
    LEASED_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_MS_FIELD_NUMBER: _ClassVar[int]
    ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    leased: _containers.RepeatedCompositeFieldContainer[Leased]
    throttled_ms: int
    elsewhere: _containers.RepeatedScalarFieldContainer[int]
    traceparent: str
    def __init__(self, leased: _Optional[_Iterable[_Union[Leased, _Mapping]]] = ..., throttled_ms: _Optional[int] = ..., elsewhere: _Optional[_Iterable[int]] = ..., traceparent: _Optional[str] = ...) -> None: ...

class Leased(_message.Message):
    __slots__ = ("partition", "lease", "pieces", "frames", "reasons")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    partition: int
    lease: int
    pieces: _containers.RepeatedCompositeFieldContainer[Piece]
    frames: int
    reasons: _containers.RepeatedCompositeFieldContainer[FailureReason]
    def __init__(self, partition: _Optional[int] = ..., lease: _Optional[int] = ..., pieces: _Optional[_Iterable[_Union[Piece, _Mapping]]] = ..., frames: _Optional[int] = ..., reasons: _Optional[_Iterable[_Union[FailureReason, _Mapping]]] = ...) -> None: ...

class FailureReason(_message.Message):
    __slots__ = ("start", "count", "reason")
    START_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    start: int
    count: int
    reason: str
    def __init__(self, start: _Optional[int] = ..., count: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("start", "count", "delivery")
    START_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    start: int
    count: int
    delivery: int
    def __init__(self, start: _Optional[int] = ..., count: _Optional[int] = ..., delivery: _Optional[int] = ...) -> None: ...

class AwaitReady(_message.Message):
    __slots__ = ("topic", "topic_id", "partitions", "group", "consumer", "consumer_name", "wait_ms", "start_latest")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_NAME_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    START_LATEST_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    partitions: _containers.RepeatedScalarFieldContainer[int]
    group: str
    consumer: int
    consumer_name: str
    wait_ms: int
    start_latest: bool
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partitions: _Optional[_Iterable[int]] = ..., group: _Optional[str] = ..., consumer: _Optional[int] = ..., consumer_name: _Optional[str] = ..., wait_ms: _Optional[int] = ..., start_latest: bool = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("partitions", "elsewhere")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedScalarFieldContainer[int]
    elsewhere: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, partitions: _Optional[_Iterable[int]] = ..., elsewhere: _Optional[_Iterable[int]] = ...) -> None: ...

class Interval(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Settle(_message.Message):
    __slots__ = ("topic", "topic_id", "group", "settlements", "consumer")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SETTLEMENTS_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    group: str
    settlements: _containers.RepeatedCompositeFieldContainer[Settlement]
    consumer: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., group: _Optional[str] = ..., settlements: _Optional[_Iterable[_Union[Settlement, _Mapping]]] = ..., consumer: _Optional[int] = ...) -> None: ...

class Settlement(_message.Message):
    __slots__ = ("partition", "lease", "outcome", "intervals", "delay_ms", "reason", "visibility_ms")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    INTERVALS_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_MS_FIELD_NUMBER: _ClassVar[int]
    partition: int
    lease: int
    outcome: Outcome
    intervals: _containers.RepeatedCompositeFieldContainer[Interval]
    delay_ms: int
    reason: str
    visibility_ms: int
    def __init__(self, partition: _Optional[int] = ..., lease: _Optional[int] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., intervals: _Optional[_Iterable[_Union[Interval, _Mapping]]] = ..., delay_ms: _Optional[int] = ..., reason: _Optional[str] = ..., visibility_ms: _Optional[int] = ...) -> None: ...

class Settled(_message.Message):
    __slots__ = ("lost",)
    LOST_FIELD_NUMBER: _ClassVar[int]
    lost: _containers.RepeatedCompositeFieldContainer[Lost]
    def __init__(self, lost: _Optional[_Iterable[_Union[Lost, _Mapping]]] = ...) -> None: ...

class Lost(_message.Message):
    __slots__ = ("settlement", "intervals")
    SETTLEMENT_FIELD_NUMBER: _ClassVar[int]
    INTERVALS_FIELD_NUMBER: _ClassVar[int]
    settlement: int
    intervals: _containers.RepeatedCompositeFieldContainer[Interval]
    def __init__(self, settlement: _Optional[int] = ..., intervals: _Optional[_Iterable[_Union[Interval, _Mapping]]] = ...) -> None: ...

class ReleaseConsumer(_message.Message):
    __slots__ = ("topic", "topic_id", "partitions", "group", "consumer")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    partitions: _containers.RepeatedScalarFieldContainer[int]
    group: str
    consumer: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partitions: _Optional[_Iterable[int]] = ..., group: _Optional[str] = ..., consumer: _Optional[int] = ...) -> None: ...

class DescribeGroups(_message.Message):
    __slots__ = ("topic", "partitions", "group", "leases")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    group: str
    leases: int
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., group: _Optional[str] = ..., leases: _Optional[int] = ...) -> None: ...

class GroupsDescribed(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupDescription]
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupDescription, _Mapping]]] = ...) -> None: ...

class GroupDescription(_message.Message):
    __slots__ = ("group", "partition", "waiting", "in_flight", "delayed", "done", "dead", "lost", "redelivered", "floor", "committed", "start", "consumers", "is_shared", "end", "is_sticky", "leased")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    REDELIVERED_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    IS_SHARED_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    IS_STICKY_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    group: str
    partition: int
    waiting: int
    in_flight: int
    delayed: int
    done: int
    dead: int
    lost: int
    redelivered: int
    floor: int
    committed: int
    start: int
    consumers: _containers.RepeatedCompositeFieldContainer[Consumer]
    is_shared: bool
    end: int
    is_sticky: bool
    leased: _containers.RepeatedCompositeFieldContainer[InFlight]
    def __init__(self, group: _Optional[str] = ..., partition: _Optional[int] = ..., waiting: _Optional[int] = ..., in_flight: _Optional[int] = ..., delayed: _Optional[int] = ..., done: _Optional[int] = ..., dead: _Optional[int] = ..., lost: _Optional[int] = ..., redelivered: _Optional[int] = ..., floor: _Optional[int] = ..., committed: _Optional[int] = ..., start: _Optional[int] = ..., consumers: _Optional[_Iterable[_Union[Consumer, _Mapping]]] = ..., is_shared: bool = ..., end: _Optional[int] = ..., is_sticky: bool = ..., leased: _Optional[_Iterable[_Union[InFlight, _Mapping]]] = ...) -> None: ...

class InFlight(_message.Message):
    __slots__ = ("start", "count", "consumer", "deliveries", "held_ms", "left_ms")
    START_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    HELD_MS_FIELD_NUMBER: _ClassVar[int]
    LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    start: int
    count: int
    consumer: int
    deliveries: int
    held_ms: int
    left_ms: int
    def __init__(self, start: _Optional[int] = ..., count: _Optional[int] = ..., consumer: _Optional[int] = ..., deliveries: _Optional[int] = ..., held_ms: _Optional[int] = ..., left_ms: _Optional[int] = ...) -> None: ...

class Consumer(_message.Message):
    __slots__ = ("consumer", "name", "in_flight")
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    consumer: int
    name: str
    in_flight: int
    def __init__(self, consumer: _Optional[int] = ..., name: _Optional[str] = ..., in_flight: _Optional[int] = ...) -> None: ...

class SeekGroup(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "group", "earliest", "latest", "offset", "timestamp_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    partition: int
    group: str
    earliest: bool
    latest: bool
    offset: int
    timestamp_ms: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., group: _Optional[str] = ..., earliest: bool = ..., latest: bool = ..., offset: _Optional[int] = ..., timestamp_ms: _Optional[int] = ...) -> None: ...

class GroupSought(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    def __init__(self, offset: _Optional[int] = ...) -> None: ...

class DeleteGroup(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "group")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    partition: int
    group: str
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., group: _Optional[str] = ...) -> None: ...

class ListDelayed(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "from_ms", "limit")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FROM_MS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    partition: int
    from_ms: int
    limit: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., from_ms: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class DelayedListed(_message.Message):
    __slots__ = ("batches", "total")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[Delayed]
    total: int
    def __init__(self, batches: _Optional[_Iterable[_Union[Delayed, _Mapping]]] = ..., total: _Optional[int] = ...) -> None: ...

class Delayed(_message.Message):
    __slots__ = ("start", "count", "due_ms", "priority")
    START_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DUE_MS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    start: int
    count: int
    due_ms: int
    priority: int
    def __init__(self, start: _Optional[int] = ..., count: _Optional[int] = ..., due_ms: _Optional[int] = ..., priority: _Optional[int] = ...) -> None: ...

class CancelDelayed(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "intervals")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    INTERVALS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    partition: int
    intervals: _containers.RepeatedCompositeFieldContainer[Interval]
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., intervals: _Optional[_Iterable[_Union[Interval, _Mapping]]] = ...) -> None: ...

class DelayedCancelled(_message.Message):
    __slots__ = ("cancelled",)
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    cancelled: int
    def __init__(self, cancelled: _Optional[int] = ...) -> None: ...

class Redrive(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "intervals", "purge", "to", "filter", "first")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    INTERVALS_FIELD_NUMBER: _ClassVar[int]
    PURGE_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    partition: int
    intervals: _containers.RepeatedCompositeFieldContainer[Interval]
    purge: bool
    to: str
    filter: LetterFilter
    first: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., intervals: _Optional[_Iterable[_Union[Interval, _Mapping]]] = ..., purge: bool = ..., to: _Optional[str] = ..., filter: _Optional[_Union[LetterFilter, _Mapping]] = ..., first: _Optional[int] = ...) -> None: ...

class Redriven(_message.Message):
    __slots__ = ("messages", "stayed", "next")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    STAYED_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    messages: int
    stayed: int
    next: int
    def __init__(self, messages: _Optional[int] = ..., stayed: _Optional[int] = ..., next: _Optional[int] = ...) -> None: ...

class LetterFilter(_message.Message):
    __slots__ = ("topic", "group", "reason", "key", "died_from_ms", "died_before_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    DIED_FROM_MS_FIELD_NUMBER: _ClassVar[int]
    DIED_BEFORE_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    reason: str
    key: bytes
    died_from_ms: int
    died_before_ms: int
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., reason: _Optional[str] = ..., key: _Optional[bytes] = ..., died_from_ms: _Optional[int] = ..., died_before_ms: _Optional[int] = ...) -> None: ...

class Revive(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "group", "redrive", "pieces")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REDRIVE_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    partition: int
    group: str
    redrive: int
    pieces: _containers.RepeatedCompositeFieldContainer[RevivedPiece]
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., group: _Optional[str] = ..., redrive: _Optional[int] = ..., pieces: _Optional[_Iterable[_Union[RevivedPiece, _Mapping]]] = ...) -> None: ...

class RevivedPiece(_message.Message):
    __slots__ = ("start", "count", "priority")
    START_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    start: int
    count: int
    priority: int
    def __init__(self, start: _Optional[int] = ..., count: _Optional[int] = ..., priority: _Optional[int] = ...) -> None: ...

class Revived(_message.Message):
    __slots__ = ("gone",)
    GONE_FIELD_NUMBER: _ClassVar[int]
    gone: _containers.RepeatedCompositeFieldContainer[Interval]
    def __init__(self, gone: _Optional[_Iterable[_Union[Interval, _Mapping]]] = ...) -> None: ...

class ListDead(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "filter", "first")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    partition: int
    filter: LetterFilter
    first: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., filter: _Optional[_Union[LetterFilter, _Mapping]] = ..., first: _Optional[int] = ...) -> None: ...

class DeadListed(_message.Message):
    __slots__ = ("intervals", "next")
    INTERVALS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    intervals: _containers.RepeatedCompositeFieldContainer[Interval]
    next: int
    def __init__(self, intervals: _Optional[_Iterable[_Union[Interval, _Mapping]]] = ..., next: _Optional[int] = ...) -> None: ...

class TakeTokens(_message.Message):
    __slots__ = ("topic", "topic_id", "wanted", "unused", "wait_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    UNUSED_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    wanted: int
    unused: int
    wait_ms: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., wanted: _Optional[int] = ..., unused: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class TokensTaken(_message.Message):
    __slots__ = ("taken", "again_ms")
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    AGAIN_MS_FIELD_NUMBER: _ClassVar[int]
    taken: int
    again_ms: int
    def __init__(self, taken: _Optional[int] = ..., again_ms: _Optional[int] = ...) -> None: ...

class StickyBeat(_message.Message):
    __slots__ = ("topic", "group", "member", "member_name", "assignor", "generation", "released", "leaving", "session_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    MEMBER_NAME_FIELD_NUMBER: _ClassVar[int]
    ASSIGNOR_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    SESSION_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    member: int
    member_name: str
    assignor: str
    generation: int
    released: _containers.RepeatedScalarFieldContainer[int]
    leaving: bool
    session_ms: int
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., member: _Optional[int] = ..., member_name: _Optional[str] = ..., assignor: _Optional[str] = ..., generation: _Optional[int] = ..., released: _Optional[_Iterable[int]] = ..., leaving: bool = ..., session_ms: _Optional[int] = ...) -> None: ...

class StickyState(_message.Message):
    __slots__ = ("generation", "assigned", "revoked", "members", "beat_ms")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    BEAT_MS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    assigned: _containers.RepeatedCompositeFieldContainer[StickyPartition]
    revoked: _containers.RepeatedScalarFieldContainer[int]
    members: int
    beat_ms: int
    def __init__(self, generation: _Optional[int] = ..., assigned: _Optional[_Iterable[_Union[StickyPartition, _Mapping]]] = ..., revoked: _Optional[_Iterable[int]] = ..., members: _Optional[int] = ..., beat_ms: _Optional[int] = ...) -> None: ...

class StickyPartition(_message.Message):
    __slots__ = ("partition", "epoch")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    partition: int
    epoch: int
    def __init__(self, partition: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class DescribeSticky(_message.Message):
    __slots__ = ("topic", "group")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class StickyDescribed(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[StickyGroup]
    def __init__(self, groups: _Optional[_Iterable[_Union[StickyGroup, _Mapping]]] = ...) -> None: ...

class StickyGroup(_message.Message):
    __slots__ = ("topic", "group", "generation", "assignor", "members")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ASSIGNOR_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    generation: int
    assignor: str
    members: _containers.RepeatedCompositeFieldContainer[StickyMember]
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., generation: _Optional[int] = ..., assignor: _Optional[str] = ..., members: _Optional[_Iterable[_Union[StickyMember, _Mapping]]] = ...) -> None: ...

class StickyMember(_message.Message):
    __slots__ = ("member", "name", "partitions")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    member: int
    name: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, member: _Optional[int] = ..., name: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class Stats(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatsReport(_message.Message):
    __slots__ = ("values",)
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.ScalarMap[str, float]
    def __init__(self, values: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Bootstrap(_message.Message):
    __slots__ = ("addresses",)
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class JoinCluster(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: str
    def __init__(self, address: _Optional[str] = ...) -> None: ...

class RegisterBroker(_message.Message):
    __slots__ = ("id", "directory_id", "boot", "address", "peer_address", "http_address", "version", "joining", "cluster_id", "lives", "level_min", "level_max", "zone")
    ID_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PEER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    JOINING_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    LIVES_FIELD_NUMBER: _ClassVar[int]
    LEVEL_MIN_FIELD_NUMBER: _ClassVar[int]
    LEVEL_MAX_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    id: int
    directory_id: bytes
    boot: int
    address: str
    peer_address: str
    http_address: str
    version: str
    joining: bool
    cluster_id: str
    lives: _containers.RepeatedScalarFieldContainer[bytes]
    level_min: int
    level_max: int
    zone: str
    def __init__(self, id: _Optional[int] = ..., directory_id: _Optional[bytes] = ..., boot: _Optional[int] = ..., address: _Optional[str] = ..., peer_address: _Optional[str] = ..., http_address: _Optional[str] = ..., version: _Optional[str] = ..., joining: bool = ..., cluster_id: _Optional[str] = ..., lives: _Optional[_Iterable[bytes]] = ..., level_min: _Optional[int] = ..., level_max: _Optional[int] = ..., zone: _Optional[str] = ...) -> None: ...

class BrokerRegistered(_message.Message):
    __slots__ = ("cluster_id", "member", "brokers")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    member: int
    brokers: _containers.RepeatedCompositeFieldContainer[Broker]
    def __init__(self, cluster_id: _Optional[str] = ..., member: _Optional[int] = ..., brokers: _Optional[_Iterable[_Union[Broker, _Mapping]]] = ...) -> None: ...

class UpgradeCluster(_message.Message):
    __slots__ = ("to", "dry_run")
    TO_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    to: int
    dry_run: bool
    def __init__(self, to: _Optional[int] = ..., dry_run: bool = ...) -> None: ...

class SetLogLevel(_message.Message):
    __slots__ = ("broker", "logger", "level")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    LOGGER_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    broker: int
    logger: str
    level: str
    def __init__(self, broker: _Optional[int] = ..., logger: _Optional[str] = ..., level: _Optional[str] = ...) -> None: ...

class LogLevels(_message.Message):
    __slots__ = ("broker", "levels")
    class LevelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BROKER_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    broker: int
    levels: _containers.ScalarMap[str, str]
    def __init__(self, broker: _Optional[int] = ..., levels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ClusterUpgraded(_message.Message):
    __slots__ = ("before", "level", "levels")
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    before: int
    level: int
    levels: _containers.RepeatedCompositeFieldContainer[FeatureLevel]
    def __init__(self, before: _Optional[int] = ..., level: _Optional[int] = ..., levels: _Optional[_Iterable[_Union[FeatureLevel, _Mapping]]] = ...) -> None: ...

class FeatureLevel(_message.Message):
    __slots__ = ("level", "release", "brings")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    BRINGS_FIELD_NUMBER: _ClassVar[int]
    level: int
    release: str
    brings: str
    def __init__(self, level: _Optional[int] = ..., release: _Optional[str] = ..., brings: _Optional[str] = ...) -> None: ...

class RemoveBroker(_message.Message):
    __slots__ = ("id", "force")
    ID_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    id: int
    force: bool
    def __init__(self, id: _Optional[int] = ..., force: bool = ...) -> None: ...

class ReplaceBroker(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class Rebalance(_message.Message):
    __slots__ = ("status_only", "leaders_only")
    STATUS_ONLY_FIELD_NUMBER: _ClassVar[int]
    LEADERS_ONLY_FIELD_NUMBER: _ClassVar[int]
    status_only: bool
    leaders_only: bool
    def __init__(self, status_only: bool = ..., leaders_only: bool = ...) -> None: ...

class RebalanceProgress(_message.Message):
    __slots__ = ("moves_left", "leaders_left", "moving", "trouble")
    MOVES_LEFT_FIELD_NUMBER: _ClassVar[int]
    LEADERS_LEFT_FIELD_NUMBER: _ClassVar[int]
    MOVING_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    moves_left: int
    leaders_left: int
    moving: _containers.RepeatedScalarFieldContainer[str]
    trouble: str
    def __init__(self, moves_left: _Optional[int] = ..., leaders_left: _Optional[int] = ..., moving: _Optional[_Iterable[str]] = ..., trouble: _Optional[str] = ...) -> None: ...

class Transfer(_message.Message):
    __slots__ = ("topic", "partition", "to", "metadata")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    to: int
    metadata: bool
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., to: _Optional[int] = ..., metadata: bool = ...) -> None: ...

class Reconfigure(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "members")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    partition: int
    members: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., members: _Optional[_Iterable[int]] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("action", "topic", "group")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    action: str
    topic: str
    group: str
    def __init__(self, action: _Optional[str] = ..., topic: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class AddUser(_message.Message):
    __slots__ = ("name", "expires_after_ms", "new_token")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    NEW_TOKEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    expires_after_ms: int
    new_token: bool
    def __init__(self, name: _Optional[str] = ..., expires_after_ms: _Optional[int] = ..., new_token: bool = ...) -> None: ...

class UserAdded(_message.Message):
    __slots__ = ("name", "token")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    token: str
    def __init__(self, name: _Optional[str] = ..., token: _Optional[str] = ...) -> None: ...

class RemoveUser(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GrantUser(_message.Message):
    __slots__ = ("name", "grant")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    name: str
    grant: Grant
    def __init__(self, name: _Optional[str] = ..., grant: _Optional[_Union[Grant, _Mapping]] = ...) -> None: ...

class RevokeUser(_message.Message):
    __slots__ = ("name", "grant")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    name: str
    grant: Grant
    def __init__(self, name: _Optional[str] = ..., grant: _Optional[_Union[Grant, _Mapping]] = ...) -> None: ...

class ListUsers(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UsersListed(_message.Message):
    __slots__ = ("users",)
    USERS_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedCompositeFieldContainer[User]
    def __init__(self, users: _Optional[_Iterable[_Union[User, _Mapping]]] = ...) -> None: ...

class User(_message.Message):
    __slots__ = ("name", "grants", "created_ms", "expires_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    grants: _containers.RepeatedCompositeFieldContainer[Grant]
    created_ms: int
    expires_ms: int
    def __init__(self, name: _Optional[str] = ..., grants: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ..., created_ms: _Optional[int] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class ListUserRecords(_message.Message):
    __slots__ = ("fingerprint",)
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    def __init__(self, fingerprint: _Optional[bytes] = ...) -> None: ...

class UserRecordsListed(_message.Message):
    __slots__ = ("fingerprint", "records")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    records: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, fingerprint: _Optional[bytes] = ..., records: _Optional[_Iterable[str]] = ...) -> None: ...

class ExportCatalog(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CatalogExported(_message.Message):
    __slots__ = ("content",)
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    def __init__(self, content: _Optional[bytes] = ...) -> None: ...

class ExportPartition(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "groups", "after", "producers")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    partition: int
    groups: bool
    after: int
    producers: bool
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., groups: bool = ..., after: _Optional[int] = ..., producers: bool = ...) -> None: ...

class PartitionExported(_message.Message):
    __slots__ = ("start", "end", "next")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    next: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., next: _Optional[int] = ...) -> None: ...

class RestoreCatalog(_message.Message):
    __slots__ = ("content", "users")
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    users: bool
    def __init__(self, content: _Optional[bytes] = ..., users: bool = ...) -> None: ...

class CatalogRestored(_message.Message):
    __slots__ = ("users", "users_left")
    USERS_FIELD_NUMBER: _ClassVar[int]
    USERS_LEFT_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedScalarFieldContainer[str]
    users_left: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, users: _Optional[_Iterable[str]] = ..., users_left: _Optional[_Iterable[str]] = ...) -> None: ...

class RestoreTopic(_message.Message):
    __slots__ = ("name", "record", "backup", "cluster_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    BACKUP_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    record: bytes
    backup: str
    cluster_id: str
    def __init__(self, name: _Optional[str] = ..., record: _Optional[bytes] = ..., backup: _Optional[str] = ..., cluster_id: _Optional[str] = ...) -> None: ...

class TopicRestoring(_message.Message):
    __slots__ = ("topic_id", "is_open")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    IS_OPEN_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    is_open: bool
    def __init__(self, topic_id: _Optional[bytes] = ..., is_open: bool = ...) -> None: ...

class RestoreFrames(_message.Message):
    __slots__ = ("topic", "topic_id", "partition")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    partition: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ...) -> None: ...

class FramesRestored(_message.Message):
    __slots__ = ("end",)
    END_FIELD_NUMBER: _ClassVar[int]
    end: int
    def __init__(self, end: _Optional[int] = ...) -> None: ...

class FinishRestore(_message.Message):
    __slots__ = ("topic", "topic_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ...) -> None: ...

class PeerHello(_message.Message):
    __slots__ = ("protocol", "cluster_id", "node", "directory_id", "boot", "peer_address", "version", "refusal", "address", "lives", "protocol_min", "level_min", "level_max", "level", "nonce", "proof")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    PEER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LIVES_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MIN_FIELD_NUMBER: _ClassVar[int]
    LEVEL_MIN_FIELD_NUMBER: _ClassVar[int]
    LEVEL_MAX_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    cluster_id: str
    node: int
    directory_id: bytes
    boot: int
    peer_address: str
    version: str
    refusal: str
    address: str
    lives: _containers.RepeatedScalarFieldContainer[bytes]
    protocol_min: int
    level_min: int
    level_max: int
    level: int
    nonce: bytes
    proof: bytes
    def __init__(self, protocol: _Optional[int] = ..., cluster_id: _Optional[str] = ..., node: _Optional[int] = ..., directory_id: _Optional[bytes] = ..., boot: _Optional[int] = ..., peer_address: _Optional[str] = ..., version: _Optional[str] = ..., refusal: _Optional[str] = ..., address: _Optional[str] = ..., lives: _Optional[_Iterable[bytes]] = ..., protocol_min: _Optional[int] = ..., level_min: _Optional[int] = ..., level_max: _Optional[int] = ..., level: _Optional[int] = ..., nonce: _Optional[bytes] = ..., proof: _Optional[bytes] = ...) -> None: ...

class PeerPacket(_message.Message):
    __slots__ = ("peer_messages", "alive", "leads", "clock_ms")
    PEER_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    LEADS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_MS_FIELD_NUMBER: _ClassVar[int]
    peer_messages: _containers.RepeatedCompositeFieldContainer[PeerMessage]
    alive: bool
    leads: _containers.RepeatedCompositeFieldContainer[Leadership]
    clock_ms: int
    def __init__(self, peer_messages: _Optional[_Iterable[_Union[PeerMessage, _Mapping]]] = ..., alive: bool = ..., leads: _Optional[_Iterable[_Union[Leadership, _Mapping]]] = ..., clock_ms: _Optional[int] = ...) -> None: ...

class Leadership(_message.Message):
    __slots__ = ("partition", "term")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    partition: bytes
    term: int
    def __init__(self, partition: _Optional[bytes] = ..., term: _Optional[int] = ...) -> None: ...

class PeerMessage(_message.Message):
    __slots__ = ("partition", "sender", "to", "frames", "traces", "consensus", "offer", "chunk_request", "chunk", "transfer_ended", "entries_request", "entries_reply", "sleep", "rouse")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    TRACES_FIELD_NUMBER: _ClassVar[int]
    CONSENSUS_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_REQUEST_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_ENDED_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_REQUEST_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_REPLY_FIELD_NUMBER: _ClassVar[int]
    SLEEP_FIELD_NUMBER: _ClassVar[int]
    ROUSE_FIELD_NUMBER: _ClassVar[int]
    partition: bytes
    sender: int
    to: int
    frames: int
    traces: _containers.RepeatedCompositeFieldContainer[TraceContext]
    consensus: Consensus
    offer: Offer
    chunk_request: ChunkRequest
    chunk: Chunk
    transfer_ended: TransferEnded
    entries_request: EntriesRequest
    entries_reply: EntriesReply
    sleep: Sleep
    rouse: Rouse
    def __init__(self, partition: _Optional[bytes] = ..., sender: _Optional[int] = ..., to: _Optional[int] = ..., frames: _Optional[int] = ..., traces: _Optional[_Iterable[_Union[TraceContext, _Mapping]]] = ..., consensus: _Optional[_Union[Consensus, _Mapping]] = ..., offer: _Optional[_Union[Offer, _Mapping]] = ..., chunk_request: _Optional[_Union[ChunkRequest, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., transfer_ended: _Optional[_Union[TransferEnded, _Mapping]] = ..., entries_request: _Optional[_Union[EntriesRequest, _Mapping]] = ..., entries_reply: _Optional[_Union[EntriesReply, _Mapping]] = ..., sleep: _Optional[_Union[Sleep, _Mapping]] = ..., rouse: _Optional[_Union[Rouse, _Mapping]] = ...) -> None: ...

class TraceContext(_message.Message):
    __slots__ = ("frame", "traceparent", "tracestate")
    FRAME_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TRACESTATE_FIELD_NUMBER: _ClassVar[int]
    frame: int
    traceparent: str
    tracestate: str
    def __init__(self, frame: _Optional[int] = ..., traceparent: _Optional[str] = ..., tracestate: _Optional[str] = ...) -> None: ...

class Consensus(_message.Message):
    __slots__ = ("kind", "term", "log_term", "index", "commit", "reject", "hint", "vote", "round", "context", "by_transfer", "known_commit_index", "known_commit_term", "plain")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LOG_TERM_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    REJECT_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    VOTE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    BY_TRANSFER_FIELD_NUMBER: _ClassVar[int]
    KNOWN_COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    KNOWN_COMMIT_TERM_FIELD_NUMBER: _ClassVar[int]
    PLAIN_FIELD_NUMBER: _ClassVar[int]
    kind: int
    term: int
    log_term: int
    index: int
    commit: int
    reject: bool
    hint: int
    vote: int
    round: int
    context: bytes
    by_transfer: bool
    known_commit_index: int
    known_commit_term: int
    plain: _containers.RepeatedCompositeFieldContainer[PlainEntry]
    def __init__(self, kind: _Optional[int] = ..., term: _Optional[int] = ..., log_term: _Optional[int] = ..., index: _Optional[int] = ..., commit: _Optional[int] = ..., reject: bool = ..., hint: _Optional[int] = ..., vote: _Optional[int] = ..., round: _Optional[int] = ..., context: _Optional[bytes] = ..., by_transfer: bool = ..., known_commit_index: _Optional[int] = ..., known_commit_term: _Optional[int] = ..., plain: _Optional[_Iterable[_Union[PlainEntry, _Mapping]]] = ...) -> None: ...

class PlainEntry(_message.Message):
    __slots__ = ("term", "index", "membership", "data")
    TERM_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    term: int
    index: int
    membership: bool
    data: bytes
    def __init__(self, term: _Optional[int] = ..., index: _Optional[int] = ..., membership: bool = ..., data: _Optional[bytes] = ...) -> None: ...

class Configuration(_message.Message):
    __slots__ = ("voters", "outgoing", "learners", "learners_next", "auto_leave")
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    OUTGOING_FIELD_NUMBER: _ClassVar[int]
    LEARNERS_FIELD_NUMBER: _ClassVar[int]
    LEARNERS_NEXT_FIELD_NUMBER: _ClassVar[int]
    AUTO_LEAVE_FIELD_NUMBER: _ClassVar[int]
    voters: _containers.RepeatedScalarFieldContainer[int]
    outgoing: _containers.RepeatedScalarFieldContainer[int]
    learners: _containers.RepeatedScalarFieldContainer[int]
    learners_next: _containers.RepeatedScalarFieldContainer[int]
    auto_leave: bool
    def __init__(self, voters: _Optional[_Iterable[int]] = ..., outgoing: _Optional[_Iterable[int]] = ..., learners: _Optional[_Iterable[int]] = ..., learners_next: _Optional[_Iterable[int]] = ..., auto_leave: bool = ...) -> None: ...

class Offer(_message.Message):
    __slots__ = ("message", "snapshot_index", "snapshot_term", "configuration", "size", "checksum")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_INDEX_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_TERM_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    message: Consensus
    snapshot_index: int
    snapshot_term: int
    configuration: Configuration
    size: int
    checksum: int
    def __init__(self, message: _Optional[_Union[Consensus, _Mapping]] = ..., snapshot_index: _Optional[int] = ..., snapshot_term: _Optional[int] = ..., configuration: _Optional[_Union[Configuration, _Mapping]] = ..., size: _Optional[int] = ..., checksum: _Optional[int] = ...) -> None: ...

class ChunkRequest(_message.Message):
    __slots__ = ("index", "checksum", "at")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    index: int
    checksum: int
    at: int
    def __init__(self, index: _Optional[int] = ..., checksum: _Optional[int] = ..., at: _Optional[int] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("index", "checksum", "at", "data")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    index: int
    checksum: int
    at: int
    data: bytes
    def __init__(self, index: _Optional[int] = ..., checksum: _Optional[int] = ..., at: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class TransferEnded(_message.Message):
    __slots__ = ("index", "arrived")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_FIELD_NUMBER: _ClassVar[int]
    index: int
    arrived: bool
    def __init__(self, index: _Optional[int] = ..., arrived: bool = ...) -> None: ...

class EntriesRequest(_message.Message):
    __slots__ = ("first", "last")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class EntriesReply(_message.Message):
    __slots__ = ("first", "first_kept")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    FIRST_KEPT_FIELD_NUMBER: _ClassVar[int]
    first: int
    first_kept: int
    def __init__(self, first: _Optional[int] = ..., first_kept: _Optional[int] = ...) -> None: ...

class Sleep(_message.Message):
    __slots__ = ("term", "index")
    TERM_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    term: int
    index: int
    def __init__(self, term: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class Rouse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
