"""Texts of people, and of Spark: settings, pipelines, offsets."""

import json
import tempfile
from pathlib import Path

from quivermq.cli.configuration import load as load_settings
from quivermq.cli.errors import UsageError
from quivermq.errors import QuiverError
from quivermq.pipelines.loading import parse as parse_pipeline
from quivermq.spark.source.offsets import from_json, to_json
from quivermq.spark.source.options import ReadOptions
from tests.fuzz.target import Target

ROOT = Path(__file__).parents[2]


def _settings() -> list[bytes]:
    return [
        b'node_id = 2\nlisten = "127.0.0.1:7600"\nfsync = "always"\n[peers]\n1 = "a:7700"\n',
        b"tick_ms = 50\nsegment_bytes = 1_000_000\nauto_create_topics = true\n",
    ]


def _read_settings(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        file.write(data)
        file.flush()
        load_settings({}, Path(file.name))


def _pipelines() -> list[bytes]:
    return [path.read_bytes() for path in (ROOT / "examples" / "pipelines").glob("*.toml")]


def _read_pipeline(data: bytes) -> None:
    parse_pipeline(data.decode(errors="replace"), Path("fuzz.toml"))


def _checkpointed_offsets() -> list[bytes]:
    return [
        b'{"orders": {"0": 12, "1": 7, "id": "5f0c"}}',
        b'{"orders": {"0": 12, "began": {"0": 3}, "id": "5f0c"}, "more": {"id": ""}}',
    ]


def _read_checkpointed_offsets(data: bytes) -> None:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return  # Spark reads the JSON.
    if isinstance(found, dict):
        vector = from_json(found)
        assert from_json(to_json(vector)) == vector


_OPTIONS = (
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    "maxOffsetsPerTrigger",
    "maxTriggerDelay",
    "assign",
    "subscribePattern",
)


def _options() -> list[bytes]:
    """Which option, then its text."""
    texts = (
        (0, b'{"orders": {"0": 12, "1": -2}}'),
        (0, b"earliest"),
        (1, b'{"orders": {"0": 1700000000000}}'),
        (2, b"2026-01-01T00:00:00Z"),
        (2, b"1700000000000"),
        (3, b"1200"),
        (4, b"15m"),
        (5, b'{"orders": [0, 1]}'),
        (6, b"ord[ae]rs{1,3}.*|(a+)"),
    )
    return [bytes([number]) + text for number, text in texts]


def _read_option(data: bytes) -> None:
    option = _OPTIONS[data[0] % len(_OPTIONS)] if data else _OPTIONS[0]
    given = {"servers": "a:1", option: data[1:].decode(errors="replace")}
    if option not in {"assign", "subscribePattern"}:
        given["subscribe"] = "orders"
    ReadOptions.of(given, is_stream=True)


TEXT_TARGETS = {
    "settings": Target(_settings, _read_settings, errors=(QuiverError, UsageError)),
    "pipeline": Target(_pipelines, _read_pipeline),
    "checkpointed_offsets": Target(_checkpointed_offsets, _read_checkpointed_offsets),
    "options": Target(_options, _read_option),
}
