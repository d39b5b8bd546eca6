"""The format of a broker's log lines."""

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from quivermq.cli import log_lines
from quivermq.log_context import choose_request_id, current_work, working_on


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("quivermq")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:], root.level, ours.level = before
    logging.captureWarnings(False)


def test_a_text_line_has_time_level_logger_message_and_fields(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_lines.configure("info", "text", node_id=3)
    logging.getLogger("quivermq.node").info("peer %d\nis back", 2, extra={"peer": 2, "why": "a b"})
    time, rest = capsys.readouterr().err.split(" ", 1)
    assert time.endswith("Z")
    assert rest == 'INFO node: peer 2\\nis back node=3 peer=2 why="a b"\n'


def test_a_json_line_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    log_lines.configure("info", "json", node_id=3)
    try:
        raise ValueError("of many\nlines")
    except ValueError:
        logging.getLogger("quivermq.node").exception("failed", extra={"topic": "orders"})
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["logger"], line["message"]) == ("error", "quivermq.node", "failed")
    assert (line["node"], line["topic"]) == (3, "orders")
    assert "ValueError: of many" in line["exception"]


def test_the_level_applies_to_our_loggers_and_libraries_only_warn(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_lines.configure("debug", "text", node_id=1)
    logging.getLogger("quivermq.node").debug("seen")
    logging.getLogger("uvicorn").info("not seen")
    log_lines.configure("error", "text", node_id=1)
    logging.getLogger("quivermq.node").warning("not seen")
    printed = capsys.readouterr().err
    assert "DEBUG node: seen" in printed
    assert "not seen" not in printed


class Wordless:
    """Has no text."""

    def __str__(self) -> str:
        raise ValueError("none")


NESTED: dict[str, Any] = {"itself": None}
NESTED["itself"] = NESTED


@pytest.mark.parametrize(
    "value",
    [
        "a\nb\r\x00\x1b[2J\u2028",
        "\ud800 alone",
        float("nan"),
        float("-inf"),
        b"\xff\x00",
        Wordless(),
        {1: "a", "b": [float("nan"), ("x",)]},
        NESTED,
        "\U0001f3af ä",
    ],
)
def test_any_value_makes_one_line_and_valid_json(
    capsys: pytest.CaptureFixture[str], value: object
) -> None:
    log = logging.getLogger("quivermq.node")
    log_lines.configure("info", "json", node_id=3)
    log.info("%s", "x" if isinstance(value, Wordless) else value, extra={"field": value})
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    line = json.loads(printed, parse_constant=pytest.fail)
    assert (line["level"], line["node"]) == ("info", 3)
    json.dumps(line, ensure_ascii=False).encode()  # no surrogates
    log_lines.configure("info", "text", node_id=3)
    log.info("%s", "x" if isinstance(value, Wordless) else value, extra={"field": value})
    printed = capsys.readouterr().err
    assert printed.removesuffix("\n").isprintable()


def test_a_call_with_wrong_arguments_costs_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    log_lines.configure("info", "json", node_id=3)
    logging.getLogger("quivermq.node").info("%d apples", "no number")
    line = json.loads(capsys.readouterr().err)
    assert line["message"] == "'%d apples' ('no number',)"


def test_a_field_does_not_replace_what_every_line_has(capsys: pytest.CaptureFixture[str]) -> None:
    log_lines.configure("info", "json", node_id=3)
    logging.getLogger("quivermq.node").info("here", extra={"time": 1, "level": "x"})
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["time_"], line["level_"]) == ("info", 1, "x")


@pytest.mark.parametrize("style", ["text", "json"])
def test_no_token_gets_into_a_line(capsys: pytest.CaptureFixture[str], style: str) -> None:
    log_lines.configure("info", style, node_id=3)
    token = "qv_8Zl-s_3cretPartOfAToken0123456789"
    try:
        raise ValueError(f"refused {token}")
    except ValueError:
        logging.getLogger("quivermq.node").exception(
            "Authorization: Bearer %s", "a.foreign-token", extra={"header": f"bearer {token}"}
        )
    printed = capsys.readouterr().err
    assert "s_3cret" not in printed
    assert "foreign" not in printed
    assert "Bearer ***" in printed
    assert "refused qv_***" in printed


def test_a_line_names_the_request_it_belongs_to(capsys: pytest.CaptureFixture[str]) -> None:
    log_lines.configure("info", "json", node_id=3)
    log = logging.getLogger("quivermq.node")

    async def outlive(ended: asyncio.Event) -> None:
        log.info("child")
        await ended.wait()
        log.info("alone")

    async def request() -> None:
        ended = asyncio.Event()
        with working_on("r-1", "http-7"):
            log.info("begun")
            child = asyncio.create_task(outlive(ended))
            await asyncio.sleep(0)
        ended.set()
        await child
        log.info("over")

    asyncio.run(request())
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["message"], line.get("request"), line.get("connection")) for line in lines] == [
        ("begun", "r-1", "http-7"),
        ("child", "r-1", "http-7"),
        ("alone", None, None),
        ("over", None, None),
    ]
    assert current_work() is None


def test_an_id_of_a_client_is_taken_if_it_is_harmless() -> None:
    assert choose_request_id("3f2b-9.A:7/=+") == "3f2b-9.A:7/=+"
    for bad in ("", "a b", "a\r\nx: y", "x" * 129, "ä", "<b>", "a\n"):
        chosen = choose_request_id(bad)
        assert chosen != bad
        assert chosen.isascii()
        assert chosen != choose_request_id(bad)
