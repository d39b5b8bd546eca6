"""Files that cannot be run: every problem is named with its line, and all of them at once."""

from pathlib import Path

import pytest

from quivermq.errors import InvalidRequest
from quivermq.pipelines.loading import PipelineFile, load, parse
from quivermq.pipelines.model import duration_ms
from quivermq.pipelines.problems import InvalidPipeline

GOOD = '''\
[pipeline]
name = "totals"

[sources.orders]
topic = "orders"
json = "id LONG, at TIMESTAMP"
watermark = { column = "at", delay = "1 minute" }

[[steps]]
name = "counted"
sql = """
SELECT count(*) AS n
FROM orders
"""

[sinks.out]
from = "counted"
topic = "totals"
mode = "update"
'''


def parsed(text: str) -> PipelineFile:
    return parse(text, Path("folder/totals.toml"))


def problems(text: str) -> list[str]:
    with pytest.raises(InvalidPipeline) as refused:
        parsed(text)
    return [line.removeprefix("folder/totals.toml:") for line in refused.value.lines]


def test_a_file_is_understood() -> None:
    file = parsed(GOOD)
    assert file.name == "totals"
    assert file.pipeline.sources["orders"].watermark is not None
    assert file.pipeline.sources["orders"].watermark.delay == 60_000
    assert file.pipeline.pipeline.trigger == 1_000
    assert list(file.pipeline.views) == ["orders", "orders_bad", "counted"]
    assert file.sql_line(0) == 12
    assert file.sql_line(0, 2) == 13
    assert file.line("sinks", "out", "mode") == 19


def test_paths_are_meant_from_where_the_file_lies(tmp_path: Path) -> None:
    (tmp_path / "totals.toml").write_text(GOOD)
    file = load(tmp_path / "totals.toml")
    assert file.checkpoint == str(tmp_path / "checkpoints" / "totals")
    assert file.place("tables/x") == str(tmp_path / "tables" / "x")
    assert file.place("/abs") == "/abs"
    assert file.place("s3://bucket/x") == "s3://bucket/x"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            ('name = "totals"', 'nam = "totals"'),
            "2: unknown key nam in pipeline: did you mean name?",
        ),
        (('name = "totals"', ""), "1: pipeline needs name = ..."),
        (('name = "totals"', 'name = "a/b"'), "2: pipeline.name: 'a/b' is no name"),
        (
            ('topic = "orders"', "topic = 3"),
            "5: sources.orders.topic must be text in quotes, not 3",
        ),
        (('topic = "orders"', ""), "4: sources.orders: needs topic"),
        (('topic = "orders"', 'topic = "orders"\ntable = "t"'), "4: sources.orders: has topic and"),
        (('topic = "orders"\njson', 'table = "t"\njson'), "4: sources.orders: json is for topics"),
        (("[sources.orders]", '[sources."my orders"]'), "4: sources.my orders: 'my orders' cannot"),
        (
            ('delay = "1 minute"', 'delay = "1 parsec"'),
            "7: sources.orders.watermark.delay: '1 pars",
        ),
        ((', delay = "1 minute"', ""), "7: sources.orders.watermark needs delay"),
        (('name = "counted"', 'name = "Orders"'), "10: there is a orders already"),
        (('name = "counted"\n', ""), "9: step 1 needs name"),
        (('from = "counted"', 'from = "count"'), "17: sinks.out reads count, which is no source"),
        (('from = "counted"', 'from = "count"'), "did you mean counted?"),
        (('topic = "totals"', 'topic = "orders"'), "18: sinks.out writes to orders, which this"),
        (('topic = "totals"', ""), "16: sinks.out: needs topic"),
        (('topic = "totals"', 'table = "t"'), "16: sinks.out: mode update needs a topic"),
        (('mode = "update"', 'mode = "all"'), "19: sinks.out.mode must be 'append', 'update' or"),
        (
            ('"totals"\n', '"totals"\nmaster = "sc://x"\n'),
            "20: sinks.out: mode update needs a driver",
        ),
        (("[pipeline]", "[pipeline"), "1: this is no TOML"),
        (('mode = "update"', 'mode = "update'), "19: this is no TOML"),
    ],
)
def test_a_problem_is_named_with_its_line(change: tuple[str, str], complaint: str) -> None:
    assert change[0] in GOOD
    assert complaint in " ".join(problems(GOOD.replace(*change, 1)))


def test_all_problems_are_told_at_once() -> None:
    text = GOOD.replace("topic =", "topik =").replace("mode", "mod").replace("name", "nome")
    assert [line.split(":")[0] for line in problems(text)] == [
        "1", "2", "5", "9", "10", "18", "19",
    ]  # fmt: skip


def test_what_is_missing_altogether_is_said_with_what_to_add() -> None:
    text = " ".join(problems("x = 1"))
    for word in ("[pipeline]", "[sources.NAME]", "[sinks.NAME]"):
        assert word in text


def test_two_sinks_cannot_write_one_table() -> None:
    sinks = '[sinks.{}]\nfrom = "counted"\ntable = "{}"\n'
    text = GOOD + sinks.format("a", "t") + sinks.format("b", "../folder/t")
    assert problems(text) == [
        "25: sinks.a writes this table already: join both views by UNION ALL in a step"
    ]


def test_a_file_that_is_none_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="there is no file"):
        load(tmp_path / "none.toml")
    with pytest.raises(InvalidRequest, match="is a folder"):
        load(tmp_path)
    (tmp_path / "x").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidRequest, match="no text in UTF-8"):
        load(tmp_path / "x")


def test_durations_are_written_in_either_way() -> None:
    written = ["500ms", "10s", "10 seconds", "1 minute", "1h30m", "2 days", "0s", "1.5 s"]
    expected = [500, 10_000, 10_000, 60_000, 5_400_000, 172_800_000, 0, 1_500]
    assert [duration_ms(text) for text in written] == expected
    for text in ("", "5", "1 parsec", "m", "-1s"):
        with pytest.raises(ValueError, match="is no duration"):
            duration_ms(text)
