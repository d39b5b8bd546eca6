"""The format of a broker's log lines."""

import json
import logging
from collections.abc import Iterator

import pytest

from quivermq.cli import log_lines


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("quivermq")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:], root.level, ours.level = before


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
