"""The event feed: each event once, never in the way, and never more than the topic should hold."""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quivermq.batches import Frame, decode_messages
from quivermq.cluster import create_topic, found_cluster
from quivermq.cluster.catalog_view import View
from quivermq.errors import NotEnoughReplicas
from quivermq.events import EVENTS_TOPIC, KINDS, Event
from quivermq.node import event_feed, system_topic
from quivermq.node.event_feed import EventFeed, FeedParts
from quivermq.wire import proto
from tests.cluster.catalogs import broker, edited, with_topic
from tests.transports.stage import on_loop, until


def catalog(*nodes: int, topic: bool = True) -> View:
    view = edited(View(), found_cluster("c1", 7, [broker(node) for node in nodes]))
    if not topic:
        return view
    return edited(view, create_topic(view, EVENTS_TOPIC, topic_id="0a" * 12, internal=True))


class Stage:
    """The feed of broker 1, and what it had stored."""

    def __init__(self, *nodes: int, topic: bool = True) -> None:
        self.metadata: Any = SimpleNamespace(
            view=catalog(*(nodes or (1, 2, 3)), topic=topic),
            is_leader=True,
            leader=1,
            hosted=None,
            edit=self._edit,
        )
        self.silent: set[int] = set()
        self.refusals: Counter[str] = Counter()
        self.stored: list[dict[str, Any]] = []
        self.is_down = False
        self.feed = EventFeed(
            FeedParts(
                node_id=1,
                metadata=self.metadata,
                call=self._call,
                now_ms=lambda: 1_794_818_287_066,
                is_alive=lambda node: node not in self.silent,
                refusals=self.refusals,
                findings=list,
            )
        )
        self.feed.catalog_changed()

    async def _edit(self, build: Any) -> None:
        self.show(edited(self.metadata.view, build(self.metadata.view)))

    def show(self, view: View) -> None:
        self.metadata.view = view
        self.feed.catalog_changed()

    async def _call(
        self, request: proto.Request, frames: Sequence[Frame]
    ) -> tuple[proto.Response, Sequence[Frame]]:
        assert request.produce.topic == EVENTS_TOPIC
        await asyncio.sleep(0)
        if self.is_down:
            raise NotEnoughReplicas("no quorum")
        for frame in frames:
            self.stored += [json.loads(message.value) for message in decode_messages(frame)]
        return proto.Response(produced=proto.Produced()), ()

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.stored]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "_LOOK_S", 0.01)
    monkeypatch.setattr(event_feed, "_REFUSALS_S", 0.05)
    monkeypatch.setattr(system_topic, "_AGAIN_S", 0.05)


@on_loop
async def test_an_event_has_fields_for_programs_and_words_for_people() -> None:
    stage = Stage()
    stage.feed.tell("disk_full", "orders/0 waits", topic="orders", partition=0)
    await until(lambda: stage.stored)
    (event,) = stage.stored
    number = event.pop("id")
    assert event == {
        "time": "2026-11-16T08:38:07.066Z",
        "kind": "disk_full",
        "detail": "orders/0 waits",
        "broker": 1,
        "topic": "orders",
        "partition": 0,
        "group": None,
        "told_by": 1,
    }
    stage.feed.tell("disk_full", "orders/1 waits", topic="orders", partition=1)
    await until(lambda: len(stage.stored) == 2)
    assert stage.stored[1]["id"] != number
    parsed = Event.parse(json.dumps(stage.stored[1]).encode(), 7)
    assert parsed is not None
    assert (parsed.kind, parsed.partition, parsed.offset) == ("disk_full", 1, 7)
    await stage.feed.close()


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"[]", b"3", b"{}", b'{"time": 1, "kind": "x", "detail": "y"}',
     b'{"time": "t", "kind": "x", "detail": "y", "broker": "one"}', b"[" * 100_000],
)  # fmt: skip
def test_what_is_no_event_is_passed_over(data: bytes) -> None:
    assert Event.parse(data, 0) is None


def test_an_event_of_a_later_release_is_read_as_far_as_it_is_known() -> None:
    data = b'{"time": "t", "kind": "eclipse", "detail": "dark", "moon": {"phase": 1}}'
    assert Event.parse(data, 3) == Event("t", "eclipse", "dark", offset=3)


@on_loop
async def test_too_many_events_of_a_kind_are_counted_and_the_count_is_told() -> None:
    stage = Stage()
    for number in range(1_000):
        stage.feed.tell("leader_changed", f"broker 1 leads orders/{number}")
    stage.feed.tell("topic_created", "topic orders was created")
    await until(lambda: "events_left_out" in stage.kinds())
    left_out = sum(
        event["counts"]["leader_changed"]
        for event in stage.stored
        if event["kind"] == "events_left_out"
    )
    assert stage.kinds().count("leader_changed") + left_out == 1_000
    assert stage.kinds().count("leader_changed") <= 110
    assert "topic_created" in stage.kinds()
    await stage.feed.close()


@on_loop
async def test_events_that_cannot_be_stored_wait_and_too_many_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(system_topic, "RECORDS_MAX", 20)
    stage = Stage()
    stage.is_down = True
    for number in range(50):
        stage.feed.tell("topic_created", f"topic t{number}")
    await asyncio.sleep(0.05)
    assert not stage.stored
    stage.is_down = False
    await until(lambda: "events_left_out" in stage.kinds())
    told = [event for event in stage.stored if event["kind"] == "events_left_out"]
    assert stage.kinds().count("topic_created") == 20
    assert sum(event["counts"]["topic_created"] for event in told) == 30
    await stage.feed.close()


@on_loop
async def test_the_same_trouble_is_told_once_a_minute() -> None:
    stage = Stage()
    for _ in range(50):
        stage.feed.tell("disk_full", "orders/0 waits", topic="orders", partition=0)
        stage.feed.tell("disk_full", "orders/1 waits", topic="orders", partition=1)
        stage.feed.tell("leader_changed", "again and again")
    await until(lambda: len(stage.stored) == 52)
    assert stage.kinds().count("disk_full") == 2
    await stage.feed.close()


@on_loop
async def test_refusals_are_told_together_and_only_if_there_are_any() -> None:
    stage = Stage()
    stage.refusals.update({"Unauthenticated": 500, "Overloaded": 2})
    await until(lambda: stage.stored)
    stage.refusals["Unauthenticated"] += 3
    await until(lambda: len(stage.stored) == 2)
    await asyncio.sleep(0.2)
    assert [event["counts"] for event in stage.stored] == [
        {"Overloaded": 2, "Unauthenticated": 500},
        {"Unauthenticated": 3},
    ]
    assert "500 Unauthenticated" in stage.stored[0]["detail"]
    await stage.feed.close()


@on_loop
async def test_only_the_leader_of_the_cluster_tells_of_brokers_and_the_catalog() -> None:
    stage = Stage()
    stage.metadata.is_leader, stage.metadata.leader = False, 2
    stage.silent = {3}
    stage.show(with_topic(stage.metadata.view, "orders"))
    await asyncio.sleep(0.1)
    assert stage.stored == []
    # The leader knew it: there is no news when this broker takes its place.
    stage.metadata.is_leader, stage.metadata.leader = True, 1
    await asyncio.sleep(0.05)
    assert stage.stored == []
    stage.silent = set()
    await until(lambda: stage.stored)
    stage.show(with_topic(stage.metadata.view, "more"))
    await until(lambda: len(stage.stored) == 2)
    assert stage.kinds() == ["broker_back", "topic_created"]
    assert stage.stored[0]["broker"] == 3
    await stage.feed.close()


@on_loop
async def test_a_leader_that_is_lost_is_told_by_the_next_one() -> None:
    stage = Stage()
    stage.metadata.is_leader, stage.metadata.leader = False, 2
    await asyncio.sleep(0.05)
    stage.silent = {2}
    await asyncio.sleep(0.05)
    stage.metadata.leader = 0
    await asyncio.sleep(0.05)
    assert stage.stored == []
    stage.metadata.is_leader, stage.metadata.leader = True, 1
    await until(lambda: stage.stored)
    stage.silent = set()
    await until(lambda: len(stage.stored) == 2)
    assert [(event["kind"], event["broker"]) for event in stage.stored] == [
        ("broker_lost", 2),
        ("broker_back", 2),
    ]
    await stage.feed.close()


@on_loop
async def test_the_topic_is_made_once_there_is_something_to_tell_of() -> None:
    stage = Stage(1, topic=False)
    stage.feed.tell("leader_changed", "broker 1 leads _quiver/0")
    await asyncio.sleep(0.1)
    # Alone and without topics it can still join another cluster.
    assert EVENTS_TOPIC not in stage.metadata.view.topics
    stage.show(with_topic(stage.metadata.view, "orders"))
    await until(lambda: len(stage.stored) == 3)
    assert stage.kinds() == ["leader_changed", "topic_created", "topic_created"]
    topic = stage.metadata.view.topics[EVENTS_TOPIC]
    assert len(topic.partitions) == 1
    assert topic.topic_settings.retention_bytes == 64 << 20
    assert topic.topic_settings.retention_ms == 7 * 24 * 3600 * 1000
    await stage.feed.close()


@on_loop
async def test_events_of_a_cluster_that_was_given_up_are_forgotten() -> None:
    stage = Stage(1, topic=False)
    stage.feed.tell("leader_changed", "broker 1 leads _quiver/0")
    stage.metadata.is_leader = False
    view = edited(View(), found_cluster("c2", 7, [broker(2), broker(1)]))
    other = edited(view, create_topic(view, EVENTS_TOPIC, topic_id="0a" * 12, internal=True))
    stage.show(other)
    stage.feed.tell("disk_full", "new")
    await until(lambda: stage.stored)
    assert stage.kinds() == ["disk_full"]
    await stage.feed.close()


def test_every_kind_has_a_meaning_and_stands_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "events.md").read_text()
    for kind, meaning in KINDS.items():
        assert meaning
        assert f"`{kind}`" in page, kind
