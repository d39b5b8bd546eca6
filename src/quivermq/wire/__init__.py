"""The protocol: packets, and the requests and responses in them. Pure: bytes in, values out."""

from quivermq.wire.errors import error_from_proto, error_to_proto
from quivermq.wire.generated import quiver_pb2 as proto
from quivermq.wire.letter_filter import (
    DELIVERIES_HEADER,
    GROUP_HEADER,
    LETTER_HEADERS,
    OFFSET_HEADER,
    PARTITION_HEADER,
    REASON_HEADER,
    TIME_HEADER,
    TOPIC_HEADER,
    LetterFilter,
)
from quivermq.wire.limits import (
    ANSWER_BYTES_MAX,
    DESCRIBED_BY_NAME_MAX,
    FRAMES_MAX,
    check_answer,
    check_items,
)
from quivermq.wire.packets import (
    CHECKSUM_BYTES,
    PROTOCOL,
    PROTOCOL_MIN,
    Packet,
    agreed_protocol,
    frames_of,
    packet,
    protocols,
)
from quivermq.wire.plain_packets import (
    id_field,
    is_all_settled,
    plain_fields,
    plain_packet,
    stored_offset,
)
from quivermq.wire.receiver import (
    BROKER_ENVELOPE_BYTES_MAX,
    BROKER_FIRST_BYTES,
    ENVELOPE_BYTES_MAX,
    HELLO_BYTES_MAX,
    Receiver,
    StallWatch,
)
from quivermq.wire.requests import (
    UnknownRequest,
    parse_peer_hello,
    parse_peer_packet,
    parse_request,
    parse_response,
)

__all__ = [
    "ANSWER_BYTES_MAX",
    "BROKER_ENVELOPE_BYTES_MAX",
    "BROKER_FIRST_BYTES",
    "CHECKSUM_BYTES",
    "DELIVERIES_HEADER",
    "DESCRIBED_BY_NAME_MAX",
    "ENVELOPE_BYTES_MAX",
    "FRAMES_MAX",
    "GROUP_HEADER",
    "HELLO_BYTES_MAX",
    "LETTER_HEADERS",
    "OFFSET_HEADER",
    "PARTITION_HEADER",
    "PROTOCOL",
    "PROTOCOL_MIN",
    "REASON_HEADER",
    "TIME_HEADER",
    "TOPIC_HEADER",
    "LetterFilter",
    "Packet",
    "Receiver",
    "StallWatch",
    "UnknownRequest",
    "agreed_protocol",
    "check_answer",
    "check_items",
    "error_from_proto",
    "error_to_proto",
    "frames_of",
    "id_field",
    "is_all_settled",
    "packet",
    "parse_peer_hello",
    "parse_peer_packet",
    "parse_request",
    "parse_response",
    "plain_fields",
    "plain_packet",
    "proto",
    "protocols",
    "stored_offset",
]
