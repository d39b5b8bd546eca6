"""The examples on real topics and tables; what must come out is counted here, without Spark."""

import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import quivermq
from examples.pipelines import generate
from quivermq.pipelines.loading import load
from quivermq.pipelines.report_reader import latest_reports
from quivermq.pipelines.reports import TOPIC
from quivermq.pipelines.runner import run
from quivermq.testing import Cluster

EXAMPLES = Path(generate.__file__).parent
COUNT = 2_000
MINUTE = timedelta(minutes=1)


@pytest.fixture(scope="module")
def shop() -> Iterator[quivermq.Client]:
    """A broker with everything that the generator makes."""
    with Cluster(nodes=1, settings={"tick_ms": 50}) as cluster, cluster.connect() as client:
        yield client


@pytest.fixture(scope="module")
def folder(shop: quivermq.Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples, with their tables and checkpoints, in a place of their own."""
    folder = tmp_path_factory.mktemp("pipelines")
    for path in EXAMPLES.glob("*.toml"):
        shutil.copy(path, folder)
    generate.fill(shop, folder / "tables" / "customers", count=COUNT)
    return folder


def run_once(folder: Path, name: str, shop: quivermq.Client) -> Any:
    return run(load(folder / f"{name}.toml"), servers=servers_of(shop), once=True)


def servers_of(client: quivermq.Client) -> str:
    return ",".join(node.address for node in client.cluster().nodes)


def messages(client: quivermq.Client, topic: str) -> list[tuple[bytes | None, dict[str, Any]]]:
    return [
        (message.key, json.loads(message.value))
        for partition in client.topic(topic).partitions
        for message in client.read(topic, partition.partition)
    ]


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return pa.table(DeltaTable(str(folder / "tables" / name)).to_pyarrow_table()).to_pylist()


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def good_orders() -> list[dict[str, Any]]:
    made = [json.loads(each) for each in generate.orders(COUNT) if each.startswith(b"{")]
    return [order | {"at": moment(order["at"])} for order in made if order["cents"] != "a lot"]


def test_orders_per_minute_by_country(
    spark: SparkSession, shop: quivermq.Client, folder: Path
) -> None:
    report = run_once(folder, "orders_per_minute", shop)
    expected: dict[tuple[datetime, str], list[int]] = defaultdict(lambda: [0, 0])
    for order in good_orders():
        place = expected[order["at"].replace(second=0, microsecond=0), order["country"]]
        place[0] += 1
        place[1] += order["cents"]

    last = {}
    for key, row in messages(shop, "orders-per-minute"):
        assert key == row["country"].encode()
        # Counts only grow, so the greatest is the last: one key's messages are in one partition.
        place = (moment(row["minute"]), row["country"])
        last[place] = max(last.get(place, [0, 0]), [row["orders"], row["cents"]])
    assert last == expected

    over = max(order["at"] for order in good_orders()) - MINUTE
    closed = {place: each for place, each in expected.items() if place[0] + MINUTE <= over}
    found = rows(folder, "orders_per_minute")
    table = {(row["minute"], row["country"]): [row["orders"], row["cents"]] for row in found}
    assert len(closed) > 20
    assert table == closed
    assert len(found) == len(table), "each minute and country has one row"

    rejected = [row for _, row in messages(shop, "orders-rejected")]
    assert sorted(row["_value"] for row in rejected) == sorted(
        order.decode()
        for number, order in enumerate(generate.orders(COUNT))
        if number % 100 in {50, 75}
    )
    reasons = Counter(row["_reason"].split(":")[0] for row in rejected)
    assert reasons == {"not JSON": COUNT // 100, "field cents is no BIGINT": COUNT // 100}

    assert report["state"] == "finished"
    assert report["lag"] == 0
    assert report["bad_rows"] == {"orders": COUNT // 50}
    assert {sink["rows"] for sink in report["sinks"]} == {COUNT}


def test_sessions_of_clicks(spark: SparkSession, shop: quivermq.Client, folder: Path) -> None:
    run_once(folder, "click_sessions", shop)
    gap = timedelta(minutes=10)
    made = [json.loads(value) for _, value in generate.clicks(COUNT)]
    by_visitor: dict[int, list[tuple[datetime, str]]] = defaultdict(list)
    for click in made:
        by_visitor[click["visitor"]].append((moment(click["at"]), click["page"]))
    sessions = []
    for visitor, clicks in by_visitor.items():
        current: list[tuple[datetime, str]] = []
        for click in sorted(clicks):
            if current and click[0] >= current[-1][0] + gap:
                sessions.append((visitor, current))
                current = []
            current.append(click)
        sessions.append((visitor, current))
    over = max(moment(click["at"]) for click in made) - timedelta(minutes=5)
    expected = sorted(
        (
            visitor,
            clicks[0][0],
            clicks[-1][0] + gap,
            len(clicks),
            any(page == "/paid" for _, page in clicks),
        )  # type: ignore[arg-type]
        for visitor, clicks in sessions
        if clicks[-1][0] + gap <= over
    )
    columns = ("visitor", "started", "ended", "clicks", "paid")
    assert len(expected) > 100
    assert (
        sorted(tuple(row[name] for name in columns) for row in rows(folder, "sessions")) == expected
    )
    told = [
        row | {name: moment(row[name]) for name in ("started", "ended")}
        for _, row in messages(shop, "sessions")
    ]
    assert sorted(tuple(row[name] for name in columns) for row in told) == expected


def test_reasons_of_dead_letters(spark: SparkSession, shop: quivermq.Client, folder: Path) -> None:
    letters = shop.dead_letters("payments")
    assert len(letters) > 5
    run_once(folder, "dead_letters", shop)
    expected = Counter(letter.reason for letter in letters)
    counts: dict[tuple[str, str], int] = {}
    for key, row in messages(shop, "dead-letter-reasons"):
        assert key == row["reason"].encode()
        assert row["topic"] == "payments"
        place = (row["minute"], row["reason"])
        counts[place] = max(counts.get(place, 0), row["letters"])
    found: Counter[str] = Counter()
    for (_, reason), count in counts.items():
        found[reason] += count
    assert found == expected
    table = [(row["group"], row["reason"], row["message"]) for row in rows(folder, "dead_letters")]
    assert sorted(table) == sorted(
        (letter.group, letter.reason, letter.value.decode()) for letter in letters
    )


def test_orders_joined_with_the_table_of_customers(
    spark: SparkSession, shop: quivermq.Client, folder: Path
) -> None:
    run_once(folder, "enrich_orders", shop)
    known = {row["customer"]: row for row in generate.customers().to_pylist()}
    expected = []
    for order in good_orders():
        customer = known.get(order["customer"], {"name": None, "level": "unknown"})
        names = (order["order_id"], order["customer"], customer["name"], customer["level"])
        expected.append((*names, order["cents"], order["at"]))
    columns = ("order_id", "customer", "name", "level", "cents", "at")
    found = [tuple(row[name] for name in columns) for row in rows(folder, "orders_enriched")]
    assert sorted(found) == sorted(expected)
    large = {row[0] for row in expected if row[3] == "gold" and row[4] >= 15_000}
    told = messages(shop, "large-gold-orders")
    assert len(told) == len(large) > 10
    assert {row["order_id"] for _, row in told} == large
    assert all(key == str(row["customer"]).encode() for key, row in told)


def test_each_run_has_reported_and_a_second_one_finds_nothing_to_do(
    spark: SparkSession, shop: quivermq.Client, folder: Path
) -> None:
    before = {name: len(messages(shop, name)) for name in ("sessions", "large-gold-orders")}
    again = run_once(folder, "enrich_orders", shop)
    assert (again["rows"], again["state"]) == (0, "finished")
    assert {name: len(messages(shop, name)) for name in before} == before
    reports = latest_reports(shop)
    assert sorted(reports) == [
        "click-sessions",
        "dead-letters",
        "enrich-orders",
        "orders-per-minute",
    ]
    assert {report["state"] for report in reports.values()} == {"finished"}
    assert shop.topic(TOPIC).retention.max_messages
