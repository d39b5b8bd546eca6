"""Messages as JSON."""

import base64
import json

from quivermq.cli.message_lines import message_dict
from quivermq.client.models import Message


def test_utf8_messages_are_text_in_json() -> None:
    message = Message("orders", 1, 7, b"k", "grüße".encode(), {"a": b"1"}, 1_700_000_000_000, 3)
    assert json.loads(json.dumps(message_dict(message))) == {
        "topic": "orders",
        "partition": 1,
        "offset": 7,
        "timestamp": 1_700_000_000_000,
        "key": "k",
        "value": "grüße",
        "headers": {"a": "1"},
        "priority": 3,
        "encoding": "utf8",
        "content_type": None,
    }


def test_a_part_that_is_not_utf8_makes_all_parts_base64() -> None:
    found = message_dict(Message("orders", 0, 0, b"k", b"\xff", {}, 0, 0))
    assert found["encoding"] == "base64"
    assert base64.b64decode(found["value"]) == b"\xff"
    assert base64.b64decode(found["key"]) == b"k"
    assert message_dict(Message("orders", 0, 0, None, b"\xff", {}, 0, 0))["key"] is None
