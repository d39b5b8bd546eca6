"""Maps columns of a DataFrame to parts of messages: checked before a job starts, read in its tasks.

`value` is required; `key`, `headers`, `timestamp`, `topic`, `partition`, `priority` are optional.
Other columns are ignored, as by Spark's Kafka sink.
"""

from dataclasses import dataclass
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from quivermq.errors import InvalidRequest

_BYTES: Final = (BinaryType, StringType)
_NUMBERS: Final = (ByteType, ShortType, IntegerType, LongType)
_PLAIN: Final[dict[str, tuple[tuple[type[DataType], ...], str]]] = {
    "value": (_BYTES, "binary or string"),
    "key": (_BYTES, "binary or string"),
    "timestamp": ((TimestampType,), "timestamp"),
    "topic": ((StringType,), "string"),
    "partition": (_NUMBERS, "int"),
    "priority": (_NUMBERS, "int"),
}
_HEADERS_WANTED: Final = "array<struct<key:string,value:binary>> or map<string,binary>"
_HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """The column of each part of a message, and the topic for rows that name none."""

    places: dict[str, int]
    topic: str | None

    @classmethod
    def of(cls, schema: StructType, topic: str | None) -> Self:
        """The columns of this schema; raises `InvalidRequest` for what cannot be written."""
        places: dict[str, int] = {}
        for place, field in enumerate(schema.fields):
            name = field.name.lower()
            if name not in _PLAIN and name != "headers":
                continue
            if name in places:
                raise InvalidRequest(f"column {name!r} is there twice: rename or drop one")
            _check_type(name, field.dataType)
            places[name] = place
        if "value" not in places:
            names = ", ".join(schema.fieldNames()) or "none"
            raise InvalidRequest(
                "a column 'value' (binary or string) is needed: it is what a message says. "
                f"The columns are: {names}. Try to_json(struct(*)) AS value"
            )
        if topic and "offset" in [name.lower() for name in schema.fieldNames()]:
            # As the source yields them: topic and partition say where rows come from, and a copy
            # that honoured them would feed the source with its own rows.
            places.pop("topic", None)
            places.pop("partition", None)
        if topic is None and "topic" not in places:
            raise InvalidRequest(
                "no topic to write to: set the option 'topic', or add a column 'topic' (string)"
            )
        return cls(places, topic)

    def column(self, name: str, batch: Any) -> Any:
        """One column of a batch; None if there is none."""
        place = self.places.get(name)
        return None if place is None else batch.column(place)

    def messages(self, batch: Any) -> Any:
        """The messages of `batch`, as a `pyarrow.RecordBatch` for `produce_many`."""
        columns = {"value": _as_bytes(self.column("value", batch))}
        if "key" in self.places:
            columns["key"] = _as_bytes(self.column("key", batch))
        if "headers" in self.places:
            columns["headers"] = _as_headers(self.column("headers", batch))
        if "timestamp" in self.places:
            columns["timestamp"] = pc.cast(
                self.column("timestamp", batch), pa.timestamp("ms", tz="UTC"), safe=False
            )
        return pa.RecordBatch.from_pydict(columns)


def _check_type(name: str, found: DataType) -> None:
    if name == "headers":
        good, wanted = _are_headers(found), _HEADERS_WANTED
    else:
        kinds, wanted = _PLAIN[name]
        good = isinstance(found, kinds)
    if not good:
        raise InvalidRequest(
            f"column {name!r} must be {wanted}, not {found.simpleString()}: cast it, or rename it "
            "if it is not meant for the message"
        )


def _are_headers(found: DataType) -> bool:
    if isinstance(found, MapType):
        return isinstance(found.keyType, StringType) and isinstance(found.valueType, _BYTES)
    if not isinstance(found, ArrayType) or not isinstance(found.elementType, StructType):
        return False
    fields = found.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, _BYTES)
    )


def _as_bytes(column: Any) -> Any:
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _as_headers(column: Any) -> Any:
    if pa.types.is_map(column.type):
        entry = pa.struct([("key", column.type.key_type), ("value", column.type.item_type)])
        column = column.cast(pa.list_(entry))
    return column.cast(_HEADERS_TYPE)
