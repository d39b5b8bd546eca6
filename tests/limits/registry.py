"""Which scenario fills which limit, and why the others need none."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.limits.delays import Cancelled, CancelledOfBatch, Delayed, Due, Stretches
from tests.limits.leasing import Groups, Holders, Leases, Pieces, Spent, State
from tests.limits.stage import Scenario
from tests.limits.sticky import Sticky
from tests.limits.writing import Catalog, Producers, Uncommitted

SOURCES: Final = Path(__file__).parents[2] / "src" / "quivermq"
ROOMS: Final = (
    "batches", "raft", "queue", "wire", "tracing", "cluster", "log", "replica", "node",
    "transports", "settings.py", "intervals.py", "names.py",
)  # fmt: skip
"""What runs inside a broker."""

SCENARIOS: Final[dict[str, type[Scenario]]] = {
    one.name: one
    for one in (
        Leases, Pieces, Spent, Holders, Groups, State, Delayed, Due, Cancelled,
        CancelledOfBatch, Stretches, Producers, Uncommitted, Catalog, Sticky,
    )
}  # fmt: skip

WITHOUT: Final[dict[str, tuple[str, ...]]] = {
    "the largest number that a field holds: nothing is filled": (
        "batches/encode.py:_EPOCH_MAX", "batches/limits.py:COUNTER_MAX",
        "batches/limits.py:PRIORITY_MAX", "batches/limits.py:TIMESTAMP_MS_MAX",
        "cluster/features.py:FEATURE_LEVEL_MAX", "cluster/records.py:COUNT_MAX",
        "cluster/records.py:MEMBER_MAX", "cluster/records.py:NODE_MAX",
        "cluster/records.py:BROKER_MEMBER_MAX", "cluster/records.py:EPOCH_MAX",
        "cluster/records.py:STAY_MAX",
        "cluster/records.py:level_max", "cluster/sticky.py:_NUMBER_MAX",
        "cluster/users.py:_TIME_MAX",
        "log/settings.py:FILE_BYTES_MAX", "node/handlers/sticky.py:_MEMBER_MAX",
        "queue/lease_manager.py:_LEASE_MAX", "wire/packets.py:LENGTH_MAX",
    ),
    "a time, not a size": (
        "node/handlers/users.py:_EXPIRES_MS_MAX",
        "node/delivery/dispatcher.py:_ALARM_S_MAX", "node/clock.py:DIFFERENCE_MS_MAX",
        "node/handlers/open_poll.py:WAIT_MS_MAX", "node/sticky_coordinator.py:BEAT_MS_MAX",
        "node/sticky_coordinator.py:_GATHER_S_MAX", "node/sticky_coordinator.py:_LAPSE_S_MAX",
        "node/handlers/fetch.py:_WAIT_MS_MAX", "node/loop_watch.py:seconds_max",
        "node/delivery/rate_limit_client.py:_AGAIN_S_MAX",
        "node/delivery/rate_limit_client.py:_WAIT_S_MAX",
        "node/handlers/settle.py:_DELAY_MS_MAX", "node/handlers/sticky.py:SESSION_MS_MAX",
        "transports/grpc/producing.py:_DELAY_MS_MAX",
        "queue/lease_manager.py:VISIBILITY_MS_MAX", "queue/priority_index.py:CLOCK_ERROR_MS_MAX",
    ),
    "the length of one text, checked when it comes in: no state is full of it": (
        "node/access_control.py:_TOKEN_CHARACTERS_MAX", "node/audit_log.py:_DETAIL_CHARACTERS_MAX",
        "node/event_feed.py:_DETAIL_CHARACTERS_MAX",
        "queue/failure_reasons.py:REASON_CHARACTERS_MAX",
        "names.py:NAME_CHARACTERS_MAX", "cluster/records.py:TEXT_CHARACTERS_MAX",
        "cluster/sticky.py:MEMBER_NAME_CHARACTERS_MAX", "cluster/sticky.py:_TEXT_CHARACTERS_MAX",
        "node/delivery/dispatcher.py:_NAME_CHARACTERS_MAX", "wire/errors.py:MESSAGE_CHARACTERS_MAX",
    ),
    "users and what each may do, by admins: tests/cluster/test_user_records.py": (
        "cluster/users.py:GRANTS_MAX", "cluster/users.py:USERS_MAX",
    ),
    "the share of one user: tests/transports/test_users.py": ("settings.py:user_connections_max",),
    "remembered decisions, made again past it: tests/node/test_permissions.py": (
        "node/callers.py:_DECISIONS_MAX",
    ),
    "remembered so that trouble is not told twice; past it, it is": (
        "node/event_feed.py:_REPEATED_MAX",
    ),
    "what was found wrong at a start; more is in the log only": ("node/data_dir.py:FINDINGS_MAX",),
    "records that wait; past it they are counted: tests/node/test_audit_log.py": (
        "node/system_topic.py:RECORDS_MAX",
    ),
    "as many as a message for people names": (
        "cluster/catalog_changes.py:_NAMED_MAX", "cluster/upgrading.py:_NAMED_MAX",
        "node/broker.py:_NAMED_MAX",
    ),
    "the state is full of reasons as long as this: the scenario `state`": (
        "node/handlers/settle.py:_REASON_CHARACTERS_MAX",
    ),
    "of one message or batch: tests/batches/test_limits.py, tests/node/test_limits.py": (
        "batches/limits.py:batch_bytes_max", "batches/limits.py:headers_bytes_max",
        "batches/limits.py:message_bytes_max", "settings.py:batch_bytes_max",
        "settings.py:message_bytes_max",
    ),
    "remembered for people, and forgotten past it: tests/queue/test_failure_reasons.py": (
        "queue/failure_reasons.py:REASONS_MAX", "node/handlers/open_poll.py:_REASON_BYTES_MAX",
    ),
    "repeats that are recognised, of one at a time: tests/queue/test_reviving.py": (
        "queue/group.py:REVIVALS_MAX",
    ),
    "another layout below it: tests/batches/test_lone.py": ("batches/lone.py:LONE_BYTES_MAX",),
    "cut by Arrow above it: tests/batches/test_plain_cut.py": (
        "batches/plain_cut.py:PLAIN_ROWS_MAX",
    ),
    "of one value: tests/queue/test_catalog.py": (
        "queue/catalog.py:DEPTH_MAX", "queue/catalog.py:KEY_CHARACTERS_MAX",
    ),
    "what is sent or applied in one go, more follows: tests/raft/test_flow_control.py": (
        "raft/options.py:apply_bytes_max", "raft/options.py:inflight_bytes_max",
        "raft/options.py:inflight_messages_max", "raft/options.py:message_bytes_max",
        "replica/settings.py:message_bytes_max", "replica/settings.py:behind_bytes_max",
        "raft/options.py:behind_bytes_max",
    ),
    "sent again by consensus past it: tests/cluster/test_catching_up.py": (
        "node/replica_scheduler.py:_HELD_BACK_BYTES_MAX",
    ),
    "a portion of more work; the rest comes next": (
        "node/delivery/dispatcher.py:_COUNTED_MAX", "node/delivery/lease_reader.py:_CUTS_MAX",
        "node/replica_scheduler.py:_PASSES_MAX", "queue/dead_letters.py:RECORD_MESSAGES_MAX",
        "log/real_disk.py:_BUFFERS_MAX", "transports/client_connections.py:_JOINED_BYTES_MAX",
        "wire/packets.py:JOINED_BYTES_MAX", "node/broker.py:_UNMARKED_BYTES_MAX",
        "log/settings.py:unmarked_bytes_max",
    ),
    "another entry begins past it: tests/replica/test_leases.py": (
        "replica/proposal_queue.py:_GATHERED_BYTES_MAX",
    ),
    "another write begins past it: tests/replica/test_storage.py": (
        "replica/storage.py:APPEND_BYTES_MAX",
    ),
    "a cache, read from the log past it: tests/replica/test_recent.py": (
        "replica/settings.py:recent_bytes_max",
    ),
    "packed in another thread past it: tests/node/test_large_states.py": (
        "node/hosted_replica.py:_PACKED_IN_TURN_BYTES_MAX",
    ),
    "folders that were set aside; past it nothing is moved: tests/node/test_data_dir.py": (
        "node/data_dir.py:QUARANTINE_MAX",
    ),
    "what a file may claim, not what is filled: tests/log/test_forged.py": (
        "log/settings.py:ENTRIES_MAX", "node/mirrored_file.py:BYTES_MAX",
        "replica/state.py:_MEMBERS_BYTES_MAX",
    ),
    "the largest value of a setting; another segment begins past it: tests/log/test_log.py": (
        "log/settings.py:SEGMENT_BYTES_MAX", "log/settings.py:open_segments_max",
    ),
    "of one request: tests/wire/test_limits.py": (
        "node/handlers/groups.py:_INTERVALS_MAX", "node/handlers/groups.py:_LISTED_MAX",
        "node/handlers/open_poll.py:_PARTITIONS_MAX", "node/handlers/settle.py:_INTERVALS_MAX",
        "node/handlers/settle.py:_VERDICTS_MAX", "node/handlers/sticky.py:_RELEASED_MAX",
        "queue/lease_manager.py:messages_max",
        *(f"wire/limits.py:{name}_MAX" for name in (
            "ADDRESSES", "ANSWER_BYTES", "DESCRIBED_BY_NAME", "FEATURES", "FRAMES", "INTERVALS",
            "ITEMS", "LIVES", "MEMBERS", "PARTITIONS_NAMED", "TOPICS_NAMED", "VERDICTS",
        )),
    ),
    "of one answer: tests/node/test_request_costs.py": (
        "node/handlers/fetch.py:_BYTES_MAX", "node/handlers/fetch.py:_FRAMES_MAX",
        "node/handlers/open_poll.py:_BYTES_MAX", "node/handlers/open_poll.py:_MESSAGES_MAX",
    ),
    "of one packet: tests/wire/test_receiver.py": (
        "wire/receiver.py:BROKER_ENVELOPE_BYTES_MAX", "wire/receiver.py:ENVELOPE_BYTES_MAX",
        "wire/receiver.py:HELLO_BYTES_MAX", "wire/receiver.py:_FREE_CHUNKS_MAX",
    ),
    "of one message of a peer: tests/node/test_peer_codec.py": (
        "node/peer_codec.py:MEMBERSHIP_BYTES_MAX", "node/peer_codec.py:MEMBERS_MAX",
        "node/peer_codec.py:PLAIN_ENTRIES_MAX",
    ),
    "of a connection, gone with it: tests/node/test_peer_limits.py": (
        "node/peer_connection.py:LINKS_OF_NODE_MAX",
        "node/peer_connection.py:PEER_PACKET_BYTES_MAX",
        "node/peer_connection.py:PEER_PACKET_ENVELOPE_BYTES_MAX",
        "node/peer_connection.py:PEER_PACKET_FRAMES_MAX",
        "node/peer_connection.py:STRANGERS_MAX",
        "node/peer_connection.py:STRANGERS_OF_ADDRESS_MAX", "settings.py:peer_connections_max",
    ),
    "what does not fit is dropped and sent again: tests/node/test_peers.py": (
        "settings.py:outbox_bytes_max",
    ),
    "of a client's connection, gone with it: tests/transports/test_session.py": (
        "settings.py:connections_max", "settings.py:request_bytes_max",
        "settings.py:requests_max", "settings.py:unread_bytes_max",
        "transports/session.py:request_bytes_max", "transports/session.py:requests_max",
        "transports/session.py:unread_bytes_max",
    ),
    "of a client's connection, gone with it: tests/transports/test_http_limits.py": (
        "settings.py:http_body_bytes_max", "settings.py:http_connections_max",
        "transports/http/connection.py:body_bytes_max",
        "transports/http/connection.py:connections_max",
        "transports/http/connection.py:head_bytes_max",
        "transports/http/connection.py:_PIPELINED_BYTES_MAX",
        "transports/http/connection.py:_UNREAD_BYTES_MAX",
        "transports/http/connection.py:_UNWRITTEN_BYTES_MAX",
    ),
    "of one HTTP request or answer: tests/transports/test_http_hostile.py": (
        "transports/http/app.py:_PROBLEMS_MAX", "transports/http/arrow_body.py:_BATCHES_MAX",
        "transports/http/bodies.py:DELAY_S_MAX", "transports/http/bodies.py:LISTED_MAX",
        "transports/http/bodies.py:MESSAGES_MAX", "transports/http/bodies.py:PARTITION_MAX",
        "transports/http/bodies.py:U32_MAX", "transports/http/bodies.py:_EXACT_MAX",
        "transports/http/bodies.py:OFFSETS_MAX", "transports/http/bodies.py:U63_MAX",
        "transports/http/gate.py:SMALL_BODY_BYTES_MAX",
        "transports/http/bodies.py:VISIBILITY_S_MAX", "transports/http/bodies.py:WAIT_S_MAX",
        "transports/http/dead_letters.py:_BYTES_MAX",
    ),
    "memory of one process, the oldest is forgotten: tests/transports/test_http_stream.py": (
        "transports/http/stream.py:REMEMBERED_EVENTS_MAX",
        "transports/http/stream.py:REMEMBERED_STREAMS_MAX",
    ),
    "of one span, or of one message to a follower: tests/tracing/": (
        "tracing/contexts.py:LINKS_MAX", "tracing/contexts.py:TRACESTATE_CHARACTERS_MAX",
        "tracing/replication_spans.py:MARKED_MAX",
    ),
    "spans that are open, the oldest gives way: tests/tracing/test_broker_spans.py": (
        "tracing/replication_spans.py:ARRIVED_MAX",
    ),
    "of a gRPC call, gone with it: tests/transports/test_grpc_calls.py": (
        "settings.py:grpc_calls_max", "transports/grpc/listener.py:_HEADERS_BYTES_MAX",
        "transports/grpc/polling.py:PLAIN_MESSAGES_MAX",
        "transports/grpc/producing.py:_MESSAGES_MAX",
    ),
    "of a gRPC request, refused past it: tests/transports/test_grpc_costs.py": (
        "transports/grpc/leases.py:_PLACES_MAX", "transports/grpc/leases.py:_SELECTIONS_MAX",
        "transports/grpc/requests.py:_FIELDS_MAX",
    ),
    "of one Arrow stream: tests/transports/test_grpc_arrow.py": (
        "transports/grpc/arrow_streams.py:_BATCHES_MAX",
    ),
    "of a gRPC session, gone with it: tests/transports/test_grpc_session.py": (
        "transports/grpc/session.py:CREDIT_MAX", "transports/grpc/session.py:SUBSCRIPTIONS_MAX",
    ),
    "checked by the edit that makes a topic: tests/cluster/test_edits.py": (
        "settings.py:partitions_max",
    ),
    "as many as are chosen: tests/cluster/test_plan.py": ("cluster/plan.py:METADATA_VOTERS_MAX",),
    "threads, never more: tests/node/test_disk_jobs.py": ("node/disk_thread.py:HELPERS_MAX",),
    "of a gateway; past it another lane, a refusal, or forgotten: tests/node/test_gateway.py": (
        "node/gateway/broker_pool.py:LANES_MAX", "node/gateway/broker_pool.py:LANE_BYTES_MAX",
        "node/gateway/broker_pool.py:LANE_REQUESTS_MAX",
        "node/gateway/broker_routes.py:ROUTES_MAX",
    ),
    "memory of one process, gone with it; the oldest is forgotten, or a request refused": (
        "node/delivery/dispatcher.py:_NAMES_MAX", "node/sticky_coordinator.py:_PARKED_MAX",
        "node/data_dir.py:_LIVES_MAX", "node/delivery/idle_groups.py:USED_MAX",
        "node/known_leaders.py:_UNKNOWN_MAX",
        "node/delivery/rate_limit_client.py:_WANTED_MAX", "transports/grpc/polling.py:_BEGUN_MAX",
    ),
    "a number of attempts, or of entries that a member may be behind: nothing is filled": (
        "node/metadata.py:_ATTEMPTS_MAX", "node/reconfiguration.py:_LAG_MAX",
    ),
}  # fmt: skip
"""Limits by the reason why they need no scenario: one line, with the test if there is one."""


def limits_in_code() -> Iterator[str]:
    """Every limit of a broker, as file and name."""
    for room in ROOMS:
        path = SOURCES / room
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            if "generated" not in file.parts:
                name = file.relative_to(SOURCES).as_posix()
                yield from (f"{name}:{limit}" for limit in limits_of(file.read_text("utf-8")))


def limits_of(source: str) -> Iterator[str]:
    """Constants of a module with MAX in their names, and fields of its classes that end in _max."""
    for node in ast.parse(source).body:
        yield from (name for name in _names(node) if "MAX" in name.split("_"))
        for part in node.body if isinstance(node, ast.ClassDef) else ():
            yield from (name for name in _names(part) if name.endswith("_max"))


def _names(node: ast.stmt) -> Iterator[str]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    yield from (target.id for target in targets if isinstance(target, ast.Name))
