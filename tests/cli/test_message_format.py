"""`quiver consume --format`: each letter, escapes, errors; and in a pipe."""

import re
from pathlib import Path
from uuid import uuid4

import pytest

import quivermq
from quivermq.cli.errors import UsageError
from quivermq.cli.message_format import LETTERS, MessageFormat
from quivermq.client import Message
from tests.cli.commands import error_line, quiver
from tests.client.brokers import BrokerThread

DOCS = Path(__file__).parents[2] / "docs"
MESSAGE = Message(
    "orders", 1, 7, b"k\xff", b"v\x1b[2J", {"a": b"1", "b": b"2"}, 1_700_000_000_042, 3
)
BARE = Message("orders", 0, 0, None, b"", {}, 0, 0)


@pytest.fixture
def servers(broker: BrokerThread) -> str:
    return broker.address


@pytest.mark.parametrize(
    ("form", "written"),
    [
        ("%t/%p/%o", b"orders/1/7"),
        ("%k=%s", b"k\xff=v\x1b[2J"),
        ("%S %K", b"5 2"),
        ("%R%s", b"\0\0\0\5v\x1b[2J"),
        ("%T %D", b"1700000000042 2023-11-14T22:13:20.042Z"),
        ("%h", b"a=1,b=2"),
        ("%P %d [%c]", b"3 0 []"),
        (r"100%% \x41\t\\\n", b"100% A\t\\\n"),
        ("größe: %S", "größe: 5".encode()),
    ],
)
def test_letters_and_escapes(form: str, written: bytes) -> None:
    assert MessageFormat(form, for_terminal=False).write(MESSAGE) == written


def test_parts_that_are_not_there_are_empty_and_a_missing_key_has_length_minus_1() -> None:
    form = MessageFormat("%k|%K|%s|%S|%h|%c|", for_terminal=False)
    assert form.write(BARE) == b"|-1||0|||"


def test_a_terminal_gets_no_control_characters_of_users() -> None:
    form = MessageFormat(r"%k %s\n", for_terminal=True)
    assert form.write(MESSAGE) == b"k\\xff v\\x1b[2J\n"


@pytest.mark.parametrize(
    ("form", "complaint"),
    [("%s %q", "%q is not a part"), ("50%", "no letter behind %"), (r"%s\q", r"\q is not a char")],
)
def test_what_is_not_a_format_is_refused_with_what_there_is(form: str, complaint: str) -> None:
    with pytest.raises(UsageError) as raised:
        MessageFormat(form, for_terminal=False)
    assert complaint in str(raised.value)
    refused = quiver("consume", "orders", "--format", form)
    assert complaint in error_line(refused, 2)


@pytest.mark.parametrize("more", [["--json"], ["--details"]])
def test_a_format_excludes_other_looks(more: list[str]) -> None:
    refused = quiver("consume", "orders", "-F", "%s", *more)
    assert "leave --json and --details out" in error_line(refused, 2)


def test_every_letter_works_and_is_in_the_help_and_in_the_documentation() -> None:
    shown = quiver("consume", "--help", variables={"COLUMNS": "120"}).stdout
    section = (DOCS / "command-line.md").read_text().partition("## Formats of messages")[2]
    for letter in LETTERS:
        MessageFormat(f"%{letter}", for_terminal=False).write(BARE)
        assert f"%{letter} " in shown
        assert re.search(rf"^\| `%{letter}` \|", section, re.MULTILINE), letter


@pytest.mark.parametrize("group", [[], ["--group", "g"]], ids=["single", "shared"])
def test_messages_are_printed_so_and_nothing_else(servers: str, group: list[str]) -> None:
    name = f"formatted-{uuid4().hex[:8]}"
    with quivermq.connect(servers) as client:
        client.create_topic(name)
        client.produce(name, b"one", key=b"k", headers={"h": b"1"})
        client.produce(name, b"two", content_type="text/plain")
    form = r"%t %p/%o %k %s %d %c;"
    done = quiver("consume", name, *group, "--format", form, "--servers", servers)
    assert done.returncode == 0, done.stderr
    count = 1 if group else 0
    assert done.stdout == f"{name} 0/0 k one {count} ;{name} 0/1  two {count} text/plain;"
