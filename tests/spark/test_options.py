"""The options of the source: what they mean, and the error for a wrong one."""

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from quivermq.errors import InvalidRequest
from quivermq.spark.source.columns import check_schema, spark_schema
from quivermq.spark.source.options import EARLIEST, LATEST, Bound, ReadOptions


def batch(**given: str) -> ReadOptions:
    return ReadOptions.of(CaseInsensitiveDict(given), is_stream=False)


def stream(**given: str) -> ReadOptions:
    return ReadOptions.of(CaseInsensitiveDict(given), is_stream=True)


def test_a_batch_starts_at_earliest_and_a_stream_at_latest() -> None:
    assert batch(subscribe="b, a,a").topics == ("a", "b")
    assert batch(subscribe="a").starting == Bound(EARLIEST)
    assert batch(subscribe="a").ending == Bound(LATEST)
    assert stream(subscribe="a").starting == Bound(LATEST)
    assert stream(subscribe="a", startingOffsets="earliest").starting == Bound(EARLIEST)
    assert stream(subscribe="a").fail_on_loss
    assert not stream(SUBSCRIBE="a", FAILONDATALOSS="False").fail_on_loss


def test_bounds_are_offsets_or_times_and_times_override_offsets() -> None:
    json = '{"a": {"0": 5, "1": -2, "2": -1}}'
    named = {"a": {0: 5, 1: -2, 2: -1}}
    assert batch(subscribe="a", startingOffsets=json).starting == Bound(EARLIEST, offsets=named)
    assert batch(subscribe="a", endingOffsets=json).ending == Bound(LATEST, offsets=named)
    assert batch(
        subscribe="a", startingOffsets=json, startingTimestamp="1700000000000"
    ).starting == Bound(EARLIEST, time=1_700_000_000_000)
    assert batch(subscribe="a", endingTimestamp="2026-01-01T00:00:00Z").ending == Bound(
        LATEST, time=1_767_225_600_000
    )
    assert batch(subscribe="a", startingOffsetsByTimestamp='{"a": {"0": 7}}').starting == Bound(
        EARLIEST, times={"a": {0: 7}}
    )


def test_partitions_can_be_assigned() -> None:
    options = batch(assign='{"a": [2, 0], "b": [1]}')
    assert options.topics == ("a", "b")
    assert options.takes("a", 2)
    assert not options.takes("a", 1)
    assert batch(subscribe="a").takes("a", 1)


def test_delays_have_units() -> None:
    options = stream(subscribe="a", minOffsetsPerTrigger="10", maxTriggerDelay="90s")
    assert (options.rows_min, options.delay_max) == (10, 90.0)
    assert stream(subscribe="a", maxTriggerDelay="2m").delay_max == 120.0
    assert stream(subscribe="a", maxTriggerDelay="250").delay_max == 0.25


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "subscribe, subscribePattern, assign: none"),
        ({"subscribe": "a", "subscribePattern": "b"}, "subscribe and subscribePattern given"),
        ({"subscribePattern": "("}, "not a regular expression"),
        ({"subscribePattern": "a{99999999999999999999}"}, "not a regular expression"),
        ({"assign": "[" * 2_000}, "must be JSON"),
        ({"assign": "[1]"}, "must be JSON"),
        ({"assign": '{"a": ["0"]}'}, "looks like"),
        ({"subscribe": "a", "startingOffsets": "first"}, "must be JSON"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": -3}}'}, "looks like"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"x": 3}}'}, "looks like"),
        ({"subscribe": "a", "startingOffsets": "latest"}, "must not be latest"),
        ({"subscribe": "a", "endingOffsets": "earliest"}, "must not be earliest"),
        ({"subscribe": "a", "startingTimestamp": "yesterday"}, "option startingTimestamp"),
        ({"subscribe": "a", "startingTimestamp": "earliest"}, "milliseconds since 1970"),
        ({"subscribe": "a", "minPartitions": "0"}, "from 1 up"),
        ({"subscribe": "a", "minPartitions": "x"}, "from 1 up"),
        ({"subscribe": "a", "minPartitions": "9" * 5_000}, "from 1 up"),
        ({"subscribe": "a", "startingTimestamp": "9" * 5_000}, "milliseconds since 1970"),
        ({"subscribe": "a", "startingOffsets": f'{{"a": {{"{"9" * 5_000}": 3}}}}'}, "looks like"),
        ({"subscribe": "a", "failOnDataLoss": "perhaps"}, "true or false"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "5"}, "is for readStream"),
        ({"subscribe": "a", "kafka.bootstrap.servers": "x"}, "is called servers here"),
        ({"subscribe": "a", "kafka.group.id": "x"}, "there is no option kafka.group.id"),
        ({"subscribe": "a", "topic": "x"}, "name topics in subscribe"),
        ({"subscribe": "a", "startingOffset": "x"}, "did you mean startingOffsets"),
        ({"subscribe": "a", "min_partitions": "5"}, "did you mean minPartitions"),
        ({"subscrib": "a"}, "did you mean subscribe"),
    ],
)
def test_an_error_says_what_to_do(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        batch(**given)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(InvalidRequest, match="a stream has no end"):
        stream(subscribe="a", endingOffsets="latest")
    with pytest.raises(InvalidRequest, match="maxTriggerDelay must be a time"):
        stream(subscribe="a", maxTriggerDelay="soon")


def test_options_of_spark_itself_are_ignored() -> None:
    assert batch(subscribe="a", path="x", mergeSchema="true").topics == ("a",)


def test_columns_are_chosen_by_name() -> None:
    everything = ["key", "value", "topic", "partition", "offset", "timestamp", "priority"]
    assert spark_schema({}).fieldNames() == everything
    assert spark_schema({"includeHeaders": "true"}).fieldNames() == [*everything, "headers"]
    assert spark_schema({"columns": "offset, value"}).fieldNames() == ["offset", "value"]
    assert spark_schema({"columns": "headers"}).fieldNames() == ["headers"]
    for wrong in ("offset,offset", "of", "Value"):
        with pytest.raises(InvalidRequest, match="each column once"):
            spark_schema({"columns": wrong})


def test_a_schema_of_the_users_own_is_made_of_our_columns() -> None:
    schema = spark_schema({"columns": "value,offset"})
    assert check_schema(schema) is schema
    with pytest.raises(InvalidRequest, match="no column price double: it has key binary, "):
        check_schema(schema.add("price", "double"))
    with pytest.raises(InvalidRequest, match="no column key string"):
        check_schema(spark_schema({"columns": "value"}).add("key", "string"))
