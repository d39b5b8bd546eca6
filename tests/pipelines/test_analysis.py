"""SQL and sinks, judged by Spark before anything runs: no broker is there."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from quivermq.pipelines.loading import InvalidPipeline, parse
from quivermq.pipelines.runner import CheckedPipeline, check

HEAD = """\
[pipeline]
name = "p"

[sources.orders]
topic = "orders"
json = "id LONG, country STRING, at TIMESTAMP"
watermark = { column = "at", delay = "1 minute" }

[sources.raw]
pattern = "raw-.*"
headers = true

"""
SINK = '[sinks.out]\nfrom = "orders"\ntopic = "out"\n'
FIRST = HEAD.count("\n") + 1


def checked(spark: SparkSession, text: str) -> CheckedPipeline:
    return check(parse(text, Path("p.toml")), spark)


def problems(spark: SparkSession, text: str) -> list[str]:
    with pytest.raises(InvalidPipeline) as refused:
        checked(spark, text)
    return [line.removeprefix("p.toml:") for line in refused.value.lines]


def step(name: str, sql: str) -> str:
    return f'[[steps]]\nname = "{name}"\nsql = """\n{sql}\n"""\n'


def test_views_have_the_columns_of_their_sources(spark: SparkSession) -> None:
    steps = step("counted", "SELECT country, count(*) AS n\nFROM orders GROUP BY country")
    sinks = (
        SINK + '[sinks.counts]\nfrom = "Counted"\ntopic = "c"\nmode = "update"\nkey = "country"\n'
    )
    plan = checked(spark, HEAD + steps + sinks)
    columns = {name: frame.columns for name, frame in plan.views.frames.items()}
    message = ["_key", "_topic", "_partition", "_offset", "_timestamp", "_priority"]
    assert columns["orders"] == ["id", "country", "at", *message]
    assert columns["orders_bad"] == ["_value", "_reason", *message]
    assert columns["counted"] == ["country", "n"]
    assert dict(plan.views.frames["raw"].dtypes)["headers"] == "map<string,string>"
    assert [each.name for each in plan.sinks] == ["out", "counts"]
    assert [each.frame.columns for each in plan.sinks] == [["value"], ["value", "key"]]


def test_each_step_that_spark_refuses_is_named_with_the_line_of_its_fault(
    spark: SparkSession,
) -> None:
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW bystander AS SELECT 1 AS one")
    cases = {
        "column": (
            "SELECT id,\n  contry\nFROM orders",
            1,
            "there is no column contry; near: country",
        ),
        "syntax": ("SELECT id\nFRM orders x\nWHERE", 1, "Syntax error at or near 'orders'"),
        "missing": ("SELECT *\nFROM order", 1, "order is no source and no earlier step: did you"),
        "early": ("SELECT * FROM last", 0, "last is no source and no earlier step: put that step"),
        "dependent": ("SELECT * FROM column", None, ""),
        "twice": ("SELECT 1 AS a, 2 AS a", 0, "The column `a` already exists"),
        "two": ("SELECT 1;\nSELECT 2", 1, "Syntax error at or near 'SELECT'"),
        "empty": ("-- nothing", 0, "Syntax error at or near end of input"),
        "drop": ("DROP VIEW bystander", 0, "Syntax error at or near 'DROP'"),
        "groups": (
            "SELECT country, id, count(*)\nFROM orders GROUP BY country",
            0,
            '"id" is based',
        ),
        "last": ("SELECT 1 AS one", None, ""),
    }
    text, expected = HEAD, []
    for name, (sql, line, said) in cases.items():
        if line is not None:
            expected.append((text.count("\n") + 4 + line, f"step {name}: ", said))
        text += step(name, sql)
    found = problems(spark, text + SINK)
    assert len(found) == len(expected), found
    for line, (number, name, said) in zip(found, expected, strict=True):
        assert line.startswith(f"{number}: {name}"), (line, number)
        assert said in line
    assert spark.table("bystander").count() == 1, "no step is run by being looked at"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("id LONG", "id LNG"), "6: "),
        (("id LONG, country STRING, at TIMESTAMP", "INT"), "6: json names no columns"),
        (("id LONG", "_id LONG"), "6: names that begin with _"),
        (('column = "at"', 'column = "att"'), "7: there is no column att; near: at"),
        (
            ('column = "at"', 'column = "country"'),
            "7: The event time `country` has the invalid type",
        ),
    ],
)
def test_a_source_that_spark_refuses_is_named_by_the_line_of_its_key(
    spark: SparkSession, change: tuple[str, str], said: str
) -> None:
    (line,) = problems(spark, HEAD.replace(*change) + step("s", "SELECT id FROM orders") + SINK)
    assert line.startswith(said)


def test_all_sinks_are_checked_before_one_runs(spark: SparkSession) -> None:
    text = (
        HEAD
        + step("counted", "SELECT country, count(*) AS n FROM orders GROUP BY country")
        + step("fixed", "SELECT 1 AS one")
        + '[sinks.a]\nfrom = "counted"\ntopic = "a"\n'
        + '[sinks.b]\nfrom = "orders"\ntopic = "b"\nkey = "contry"\nvalue = "id"\n'
        + '[sinks.c]\nfrom = "fixed"\ntopic = "c"\n'
        + '[sinks.d]\nfrom = "orders"\ntopic = "d"\nmode = "complete"\n'
    )
    rows = text.splitlines()
    found = problems(spark, text)
    where = [int(line.split(":")[0]) for line in found]
    assert where == [
        rows.index("[sinks.a]") + 2,
        rows.index('key = "contry"') + 1,
        rows.index('value = "id"') + 1,
        rows.index("[sinks.c]") + 2,
        rows.index('mode = "complete"') + 1,
    ]
    for line, said in zip(
        found,
        ['mode = "update"', "did you mean country?", "is bigint", "reads no topic", "complete"],
        strict=True,
    ):
        assert said in line
