"""`quiver top`: its tables, its keys, and on real terminals."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

import quivermq
from quivermq.cli.top_samples import BrokerRow, GroupRow, TopicRow, TopSample
from quivermq.cli.top_screen import Screen
from quivermq.cli.top_views import VIEWS, arrange, change, fit, rate, sparkline
from quivermq.client import ClusterInfo, NodeInfo
from quivermq.cluster_findings import CheckResult
from quivermq.errors import QuiverError
from tests.cli.commands import error_line, quiver, quiver_json
from tests.cli.terminal import CTRL_C, ENTER, ESCAPE, TAB, Terminal
from tests.client.brokers import BrokerThread

CLUSTER = ClusterInfo(
    cluster_id="c",
    leader=1,
    nodes=[NodeInfo(id=n, address=f"host-{n}:7600", alive=n != 2, leaders=1) for n in (1, 2, 10)],
    node=1,
)
LONG = "shipments.europe.west.warehouse-17.tracking-events-enriched"
SAMPLE = TopSample(
    at=0.0,
    cluster=CLUSTER,
    topics=[
        TopicRow(name="orders", partitions=3, in_rate=50.0, out_rate=None, lag=7, health="ok"),
        TopicRow(name="mail", partitions=1, in_rate=900.0, lag=2, health="no leader"),
        TopicRow(name=LONG, partitions=1, lag=90_000, leaders=(1, 2), health="ok"),
        TopicRow(name="_events", partitions=1, in_rate=1.0, health="ok"),
    ],
    groups=[
        GroupRow(name="billing", topic="orders", lag=7, acked_rate=3.0, state="working"),
        GroupRow(name="late", topic="mail", lag=2, change=4.0, state="nobody works"),
        GroupRow(name="_archive.x", topic="orders", lag=1),
    ],
    brokers=[
        BrokerRow(
            id=node.id,
            address=node.address,
            state="serving" if node.alive else "down",
            leads=1,
            replicas=3,
        )
        for node in CLUSTER.nodes
    ],
    findings=[CheckResult("warn", "version", "mixed"), CheckResult("bad", "broker", "2 is down")],
)


@pytest.fixture
def servers(broker: BrokerThread) -> str:
    return broker.address


def screen(view: str = "topics", **options: str) -> Screen:
    made = Screen(view, with_system=False, interval=2.0, **options)
    made.take(SAMPLE)
    return made


def drawn(shown: Screen, columns: int = 120, lines: int = 24) -> list[str]:
    found = ["".join(text for _, text in line).rstrip() for line in shown.draw(columns, lines)]
    assert len(found) <= lines
    assert all(len(line) <= columns for line in found), found
    return found


def names(shown: Screen) -> list[str]:
    """The first cells of the rows."""
    lines = drawn(shown, columns=200)
    (head,) = [place for place, line in enumerate(lines) if re.match("TOPIC|GROUP|BROKER", line)]
    return [line.split()[0] for line in lines[head + 1 : -1] if line]


def press(shown: Screen, *keys: str) -> None:
    for key in keys:
        shown.press(key)


def test_the_busiest_topic_comes_first_and_unknown_figures_last() -> None:
    assert names(screen()) == ["mail", "orders", LONG]


def test_keys_sort_reverse_and_go_back() -> None:
    shown = screen()
    press(shown, "S")
    assert names(shown) == ["mail", "orders", LONG], "by topic"
    press(shown, "r")
    assert names(shown) == [LONG, "orders", "mail"]
    while "by lag" not in drawn(shown)[3]:
        press(shown, "s")
    assert names(shown) == [LONG, "orders", "mail"], "the largest first"
    press(shown, "r")
    assert names(shown) == ["mail", "orders", LONG]


def test_keys_choose_the_table_and_each_keeps_its_order() -> None:
    shown = screen()
    press(shown, "2")
    assert names(shown) == ["billing", "late"]
    press(shown, "S", "S", "tab")
    assert names(shown) == ["1", "2", "10"], "by number, not by letters"
    press(shown, "s-tab")
    assert "by group" in drawn(shown)[3]
    press(shown, "1")
    assert names(shown) == ["mail", "orders", LONG]


def test_a_filter_is_typed_kept_and_dropped() -> None:
    shown = screen()
    press(shown, "/", *"OrdX", "backspace")
    assert drawn(shown)[-1] == "/Ord"
    assert names(shown) == ["orders"]
    press(shown, "enter", "s", "q")
    assert shown.is_over
    assert "filter: Ord" in drawn(shown)[3]
    press(shown, "2")
    assert names(shown) == ["billing"], "by its topic"
    press(shown, "escape")
    assert names(shown) == ["billing", "late"]
    press(shown, "/", "z", "enter")
    assert "nothing has 'z' in its name" in drawn(shown)[5]


def test_topics_of_the_system_are_shown_when_asked_for() -> None:
    shown = screen()
    press(shown, "a")
    assert "_events" in names(shown)
    press(shown, "2")
    assert "_archive.x" in names(shown)


def test_the_head_counts_brokers_and_names_the_worst_finding() -> None:
    lines = drawn(screen())
    assert lines[0].startswith("quiver top  3 brokers, 2 alive")
    assert lines[1].startswith("in 951/s 0 B/s")
    assert "lag 90,009" in lines[1]
    assert lines[2] == "2 is down; 1 more, see quiver doctor"


def test_brokers_that_do_not_answer_leave_the_last_figures_on_the_screen() -> None:
    shown = screen()
    shown.fail("no broker\nanswers \x1b[2J")
    assert re.fullmatch(r"no answer for \d+ s: no broker answers \\x1b\[2J", drawn(shown)[0])
    assert names(shown) == ["mail", "orders", LONG]
    shown.take(SAMPLE)
    assert drawn(shown)[0].startswith("quiver top")


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(
    ("columns", "lines"), [(1, 1), (12, 3), (40, 8), (60, 12), (80, 24), (132, 50), (300, 9)]
)
def test_every_size_of_a_terminal_shows_what_fits(view: str, columns: int, lines: int) -> None:
    shown = screen(view)
    drawn(shown, columns, lines)
    press(shown, "?")
    drawn(shown, columns, lines)


def test_a_narrow_terminal_keeps_the_columns_that_matter_most() -> None:
    topics = VIEWS["topics"]
    narrow = fit(topics.columns, SAMPLE.topics, 40)
    assert [each.name for each in narrow.columns] == ["topic", "in/s", "out/s", "size", "lag"]
    assert "shipments.eu…" in narrow.line(narrow.rows[2][1])
    wide = fit(topics.columns, SAMPLE.topics, 200)
    assert wide.columns == topics.columns
    assert LONG in wide.line(wide.rows[2][1])


def test_long_tables_scroll_by_line_and_by_page() -> None:
    many = [TopicRow(name=f"t-{n:03}", partitions=1) for n in range(100)]
    shown = screen()
    shown.take(replace(SAMPLE, topics=many))
    assert names(shown)[0] == "t-000"
    press(shown, "down", "j", "up")
    assert names(shown)[0] == "t-001"
    press(shown, "pagedown")
    page = len(names(shown))
    assert names(shown)[0] == f"t-{1 + page:03}"
    press(shown, "end")
    assert names(shown)[-1] == "t-099"
    assert "of 100" in drawn(shown)[-1]
    press(shown, "home", "up")
    assert names(shown)[0] == "t-000"


def test_the_interval_follows_plus_and_minus_within_bounds() -> None:
    shown = screen()
    press(shown, "+")
    assert shown.interval == 1.0
    press(shown, *"++++")
    assert shown.interval == 0.5
    press(shown, *"----------")
    assert shown.interval == 30.0
    press(shown, " ")
    assert shown.is_paused
    assert "paused" in drawn(shown)[3]


def test_figures_are_short() -> None:
    assert [rate(each) for each in (None, 0.0, 0.24, 12.0, 9_999, 12_345, 2.5e6)] == [
        "-", "0", "0.2", "12", "9999", "12.3k", "2.5M",
    ]  # fmt: skip
    assert [change(each) for each in (None, 0.01, 3, -250)] == ["-", "0", "+3.0", "-250"]
    assert sparkline([0.0, 1.0, 2.0, 4.0], 3) == "▂▄█"
    assert sparkline([0.0, 0.0], 8) == "▁▁"
    assert not sparkline([], 8)


def test_rows_with_equal_figures_keep_their_places() -> None:
    rows = [TopicRow(name=name, partitions=1, lag=1) for name in "bca"]
    lag = VIEWS["topics"].column("lag")
    for is_reverse in (False, True):
        found = arrange(rows, lag, is_reverse=is_reverse, text="")
        assert [row.name for row in found] == ["a", "b", "c"]


@contextmanager
def load(servers: str, topic: str) -> Iterator[None]:
    """A producer, and a group that leaves work behind, until the end of the block."""
    ended = threading.Event()

    def work() -> None:
        with quivermq.connect(servers) as client:
            while not ended.wait(0.02):
                with suppress(QuiverError):
                    client.produce_many(topic, [b"x" * 100] * 20)
                    client.ack(client.poll(topic, group="billing", max_messages=10, wait=0))

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        ended.set()
        worker.join()


@pytest.fixture
def topic(servers: str) -> str:
    name = f"busy-{uuid4().hex[:8]}"
    with quivermq.connect(servers) as client:
        client.create_topic(name, partitions=2)
        client.produce_many(name, [b"x"] * 100)
        client.ack(client.poll(name, group="billing", max_messages=1))
    return name


def test_without_a_terminal_tables_are_printed_once(servers: str, topic: str) -> None:
    at = ["--servers", servers, "--interval", "300ms", "--filter", topic]
    with load(servers, topic):
        # On a busy machine nothing may happen between two looks.
        for _ in range(50):
            told = quiver_json("top", *at)
            (row,), (group,) = told["topics"], told["groups"]
            if row["in_rate"] and group["state"] == "working":
                break
        done = quiver("top", *at)
    assert row["name"] == topic
    assert row["in_rate"] > 0
    assert row["bytes_in"] > row["in_rate"] * 100
    assert row["messages"] >= 100
    assert row["size"] > 0
    assert (row["partitions"], row["health"]) == (2, "ok")
    assert (group["name"], group["topic"], group["state"]) == ("billing", topic, "working")
    assert group["lag"] > 0
    assert told["brokers"] == [], "none has this in its address"
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 broker, 1 alive\n")
    assert "\x1b" not in done.stdout
    assert re.search(rf"^{topic} +[\d.]+k? ", done.stdout, re.MULTILINE)
    assert re.search(rf"^billing +{topic} +[\d,]+ ", done.stdout, re.MULTILINE)


def test_a_terminal_can_have_plain_tables_too_which_fit(servers: str) -> None:
    with quivermq.connect(servers) as client:
        client.create_topic(LONG)
    at = ("--servers", servers, "--interval", "200ms", "--filter", "shipments")
    with Terminal("top", "--once", *at, columns=60) as terminal:
        assert terminal.wait_for_end() == 0
        shown = terminal.lines
    (head,) = [line for line in shown if line.startswith("TOPIC")]
    assert head.split()[1:4] == ["IN/S", "OUT/S", "MESSAGES"]
    assert len([line for line in shown if line.startswith("shipments.")]) == 1
    assert b"\x1b[?1049h" not in terminal.written, "no screen of its own"
    whole = quiver("top", *at).stdout
    assert f"\n{LONG} " in whole
    assert re.search(r"^TOPIC .* HEALTH$", whole, re.MULTILINE)


def test_a_table_can_be_chosen_sorted_and_seen_by_machines(servers: str) -> None:
    told = quiver_json(
        "top", "--view", "brokers", "--sort", "broker", "--interval", "200ms", "--servers", servers
    )
    assert list(told) == ["brokers", "findings"]
    (row,) = told["brokers"]
    assert (row["id"], row["state"]) == (1, "leader")
    assert row["memory"] > 10e6
    assert row["cpu"] is not None
    assert row["disk_free"] > 0
    assert told["findings"] == []


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--sort", "colour"], "topics have no 'colour', but topic, in/s"),
        (["--view", "brokers", "--sort", "lag"], "brokers have no 'lag'"),
        (["--interval", "1ms"], "at least 0.1s"),
        (["--servers", "nowhere:99999"], "--servers"),
    ],
)
def test_wrong_options_are_named(options: list[str], complaint: str) -> None:
    assert complaint in error_line(quiver("top", *options), 2)


def test_a_cluster_that_does_not_answer_is_an_error() -> None:
    done = quiver("top", "--servers", "127.0.0.1:1", "--timeout", "200ms")
    assert "127.0.0.1:1" in error_line(done, 1)


def has(pattern: str) -> Callable[[str], object]:
    return re.compile(pattern, re.MULTILINE).search


def test_a_terminal_shows_all_tables_takes_keys_and_survives_its_size(
    servers: str, topic: str
) -> None:
    at = ("--servers", servers, "--interval", "300ms")
    with (
        load(servers, topic),
        Terminal("top", *at, columns=130, lines=30) as terminal,
    ):
        shown = terminal.wait_until(has(rf"^{topic} +[1-9][\d.k]* "))
        lines = shown.splitlines()
        assert re.match(r"quiver top  1 broker, 1 alive +\d\d:\d\d:\d\d$", lines[0])
        assert re.match(r"in [\d.k]+/s .* lag [\d,]+  in flight \d", lines[1])
        assert lines[2] == "nothing needs attention"
        assert lines[3].startswith(" 1 topics   2 groups   3 brokers   by in/s ↓")
        assert lines[4].split()[:4] == ["TOPIC", "IN/S", "OUT/S", "BYTES"]
        assert lines[-1].endswith("space pause")
        terminal.press("2")
        terminal.wait_until(has(rf"^billing +{topic} +[\d,]+ "))
        terminal.press(TAB)
        terminal.wait_until(has(r"^1 +127.0.0.1:\d+ +\w+ "))
        terminal.resize(50, 12)
        shown = terminal.wait_until(lambda text: "IN/S" in text and "ADDRESS" not in text)
        assert "BROKER" in shown
        assert "q quit" in shown
        terminal.press(f"1/{topic[:8]}")
        terminal.wait_until(f"/{topic[:8]}")
        terminal.press(ENTER)
        terminal.wait_until("1 topic ")
        terminal.resize(110, 20)
        terminal.wait_until("HEALTH")
        terminal.press(ESCAPE)
        terminal.wait_until(lambda text: "filter:" not in text)
        terminal.press("?")
        terminal.wait_until("Keys of quiver top")
        terminal.press("?")
        terminal.wait_until("HEALTH")
        terminal.press("q")
        assert terminal.wait_for_end() == 0
        assert b"\x1b[?1049l" in terminal.written, "the terminal is as it was"


def test_brokers_that_go_away_and_come_back_are_waited_for(tmp_path: Path) -> None:
    broker = BrokerThread(tmp_path, http="127.0.0.1:0")
    is_stopped = False
    try:
        with quivermq.connect(broker.address) as client:
            client.create_topic("orders")
        at = ("--servers", broker.address, "--interval", "200ms", "--timeout", "1s")
        with Terminal("top", *at) as terminal:
            terminal.wait_until("orders")
            broker.stop()
            is_stopped = True
            shown = terminal.wait_until("no answer for")
            assert "orders" in shown, "what was known stays"
            broker.start()
            is_stopped = False
            terminal.wait_until("1 broker, 1 alive")
            with quivermq.connect(broker.address) as client:
                client.create_topic("returns")
            terminal.wait_until("returns")
            terminal.press(CTRL_C)
            assert terminal.wait_for_end() == 0
    finally:
        if not is_stopped:
            broker.stop()


def test_without_metrics_the_client_tells_what_it_knows(tmp_path: Path) -> None:
    broker = BrokerThread(tmp_path)
    try:
        with quivermq.connect(broker.address) as client:
            client.create_topic("orders")
            client.produce_many("orders", [b"x"] * 50)
            client.ack(client.poll("orders", group="g", max_messages=10))
        with load(broker.address, "orders"):
            for _ in range(50):
                told = quiver_json("top", "--interval", "300ms", "--servers", broker.address)
                (row,) = told["topics"]
                groups = {group["name"]: group for group in told["groups"]}
                if row["in_rate"] and groups.get("billing", {}).get("acked_rate"):
                    break
    finally:
        broker.stop()
    assert row["in_rate"] > 0
    assert row["out_rate"] is None
    assert row["leaders"] == [1]
    assert groups["g"]["lag"] >= 40
    assert groups["billing"]["acked_rate"] > 0


def test_a_user_sees_the_topics_of_their_grants_and_no_others(tmp_path: Path) -> None:
    broker = BrokerThread(tmp_path, http="127.0.0.1:0", users=True)
    try:
        with quivermq.connect(broker.address) as client:
            root = client.users.add("root")
            client.users.grant("root", "admin")
        with quivermq.connect(broker.address, token=root) as client:
            reader = client.users.add("reader")
            client.users.grant("reader", "consume", topic="open")
            for name in ("open-orders", "secret-orders"):
                client.create_topic(name)
                client.produce_many(name, [b"x"] * 5)
                client.release(client.poll(name, group="late", max_messages=1))
        at = ("--servers", broker.address, "--interval", "200ms")
        seen = quiver_json("top", *at, variables={"QUIVER_TOKEN": reader})
        assert [row["name"] for row in seen["topics"]] == ["open-orders"]
        assert [row["topic"] for row in seen["groups"]] == ["open-orders"]
        assert "secret" not in json.dumps(seen)
        assert seen["brokers"][0]["connections"] >= 1
        everything = quiver_json("top", *at, variables={"QUIVER_TOKEN": root})
        assert {row["name"] for row in everything["topics"]} == {"open-orders", "secret-orders"}
    finally:
        broker.stop()
