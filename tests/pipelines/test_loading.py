"""Files that cannot be run: every problem is named with its line, and all of them at once."""

from pathlib import Path

import pytest

from quivermq.errors import InvalidRequest
from quivermq.pipelines.loading import InvalidPipeline, PipelineFile, load, parse
from quivermq.pipelines.model import duration_ms

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


def test_a_file_is_loaded() -> None:
    file = parsed(GOOD)
    assert file.name == "totals"
    assert file.pipeline.sources["orders"].watermark is not None
    assert file.pipeline.sources["orders"].watermark.delay == 60_000
    assert file.pipeline.pipeline.trigger == 1_000
    assert list(file.pipeline.views) == ["orders", "orders_bad", "counted"]
    assert file.sql_line(0) == 12
    assert file.sql_line(0, 2) == 13
    assert file.line("sinks", "out", "mode") == 19


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
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
        (
            ('topic = "orders"', "pattern = 'tot.*'"),
            "18: sinks.out writes to totals, which this pipeline reads",
        ),
        (('topic = "orders"', 'pattern = "("'), "5: sources.orders.pattern: '(' is not a regular"),
        (("[[steps]]", "[steps]"), "9: write [[steps]], in two brackets"),
        (('topic = "totals"', 'topic = "_pipelines"'), "18: sinks.out.topic: _pipelines is a"),
        (('topic = "totals"', 'topic = "a b"'), "18: sinks.out.topic: 'a b' is no topic name"),
        (('topic = "orders"', 'topics = ["a,b"]'), "5: sources.orders.topics.0: 'a,b' is no topic"),
        (('topic = "orders"', r'table = "a\u0000b"'), "5: sources.orders.table: holds a character"),
        (('"totals"\n', f'"totals"\ntrigger = "{"9" * 400}d"\n'), "3: pipeline.trigger: '999"),
        (('"totals"\n', '"totals"\ntrigger = "99999d"\n'), "'99999d' is too long: 10000 days"),
        (('"totals"\n', '"totals"\ncheckpoint = "~nobody-here/x"\n'), "3: pipeline.checkpoint: '~"),
        (('"totals"\n', f'"totals"\nspark.a = {"9" * 5000}\n'), "3: a number has too many"),
        (
            ('"totals"\n', f'"totals"\na = {"[" * 3000}{"]" * 3000}\n'),
            "3: brackets are nest",
        ),
        (("[pipeline]", "[pipeline"), "1: this is no TOML"),
        (('mode = "update"', 'mode = "update'), "19: this is no TOML"),
    ],
)
def test_a_problem_is_named_with_its_line(change: tuple[str, str], complaint: str) -> None:
    assert change[0] in GOOD
    assert complaint in " ".join(problems(GOOD.replace(*change, 1)))


def test_all_problems_are_reported_at_once() -> None:
    text = GOOD.replace("topic =", "topik =").replace("mode", "mod").replace("name", "nome")
    assert [line.split(":")[0] for line in problems(text)] == [
        "1", "2", "5", "9", "10", "18", "19",
    ]  # fmt: skip


def test_a_missing_table_is_reported_with_what_to_add() -> None:
    text = " ".join(problems("x = 1"))
    for word in ("[pipeline]", "[sources.NAME]", "[sinks.NAME]"):
        assert word in text


def test_names_that_differ_in_case_only_are_one_name_to_sql() -> None:
    twin = '[sources.Orders]\ntopic = "other"\n'
    (line,) = problems(GOOD + twin)
    assert line.startswith("20: there is a orders already, and SQL does not tell upper case from")
    bad = '[sources.ORDERS_bad]\ntopic = "other"\n'
    assert problems(GOOD + bad) == [
        "20: ORDERS_bad is the view of the rows of orders that are no JSON: name this otherwise"
    ]


def test_a_setting_of_the_wrong_kind_is_one_problem() -> None:
    text = GOOD.replace('"totals"\n', '"totals"\nspark.a = [1]\nspark.b = 1979-05-27\n', 1)
    text += "options = { a = 1.5, b = [1], c = true }\n"
    wanted = "must be text in quotes, a number, true or false"
    assert problems(text) == [
        f"3: pipeline.spark.a: {wanted}",
        f"4: pipeline.spark.b: {wanted}",
        f"22: sinks.out.options.b: {wanted}",
    ]


def test_a_token_is_not_shown() -> None:
    assert problems(GOOD.replace('"totals"\n', '"totals"\ntoken = 12345\n', 1)) == [
        "3: pipeline.token must be text in quotes"
    ]


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "totals.toml").write_text(GOOD, encoding="utf-8-sig")
    assert load(tmp_path / "totals.toml").sql_line(0, 2) == 13


def test_two_sinks_cannot_write_one_table() -> None:
    sinks = '[sinks.{}]\nfrom = "counted"\ntable = "{}"\n'
    text = GOOD + sinks.format("a", "t") + sinks.format("b", "../folder/t")
    assert problems(text) == [
        "25: sinks.a writes this table already: join both views by UNION ALL in a step"
    ]


def test_a_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="there is no file"):
        load(tmp_path / "none.toml")
    with pytest.raises(InvalidRequest, match="is a folder"):
        load(tmp_path)
    with pytest.raises(InvalidRequest, match="cannot be read: File name too long"):
        load("x" * 300)
    with pytest.raises(InvalidRequest, match="cannot be read: embedded null"):
        load("a\0b")
    (tmp_path / "x").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidRequest, match="no text in UTF-8"):
        load(tmp_path / "x")


def test_durations_have_short_and_long_units() -> None:
    written = ["500ms", "10s", "10 seconds", "1 minute", "1h30m", "2 days", "0s", "1.5 s"]
    expected = [500, 10_000, 10_000, 60_000, 5_400_000, 172_800_000, 0, 1_500]
    assert [duration_ms(text) for text in written] == expected
    for text in ("", "5", "1 parsec", "m", "-1s"):
        with pytest.raises(ValueError, match="is not a duration"):
            duration_ms(text)
