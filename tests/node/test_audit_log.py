"""The audit log never blocks and never grows without bound."""

import asyncio
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from quivermq.batches import Frame, decode_messages
from quivermq.cluster import AUDIT_TOPIC, UserRecord, create_topic, digest_of, found_cluster
from quivermq.cluster.catalog_view import View
from quivermq.errors import NotEnoughReplicas, Unauthenticated
from quivermq.node import system_topic
from quivermq.node.audit_log import AuditLog
from quivermq.node.callers import BROKER, Account, Caller
from quivermq.wire import proto
from tests.cluster.catalogs import broker, edited
from tests.transports.stage import on_loop, until

BOB = Caller(Account(UserRecord("bob", digest_of("b"), 1)), "10.0.0.7", "tcp")
CREATION = proto.Request(create_topic=proto.CreateTopic(name="orders"))


class Stage:
    """An audit log, and what it had stored."""

    def __init__(self) -> None:
        view = edited(View(), found_cluster("c1", 7, [broker(1)]))
        made = create_topic(view, AUDIT_TOPIC, topic_id="0a" * 12, internal=True)
        self.metadata: Any = SimpleNamespace(view=edited(view, made), is_leader=False)
        self.stored: list[dict[str, Any]] = []
        self.is_down = False
        self.log = AuditLog(1, self.metadata, self._call, lambda: 1_000)

    async def _call(
        self, request: proto.Request, frames: Sequence[Frame]
    ) -> tuple[proto.Response, Sequence[Frame]]:
        assert request.produce.topic == AUDIT_TOPIC
        await asyncio.sleep(0)
        if self.is_down:
            raise NotEnoughReplicas("no quorum")
        for frame in frames:
            self.stored += [json.loads(message.value) for message in decode_messages(frame)]
        return proto.Response(produced=proto.Produced()), ()


@on_loop
async def test_a_record_names_the_user_the_place_the_action_and_its_outcome() -> None:
    stage = Stage()
    stage.log.record(BOB, CREATION, "")
    await until(lambda: stage.stored)
    assert stage.stored == [
        {
            "time_ms": 1_000,
            "user": "bob",
            "address": "10.0.0.7",
            "door": "tcp",
            "node": 1,
            "action": "create_topic",
            "outcome": "ok",
            "detail": {"name": "orders"},
        }
    ]
    await stage.log.close()


@on_loop
async def test_questions_of_admins_are_recorded_only_if_they_are_refused() -> None:
    stage = Stage()
    status = proto.Request(rebalance=proto.Rebalance(status_only=True))
    trial = proto.Request(upgrade_cluster=proto.UpgradeCluster(dry_run=True))
    for question in (status, trial):
        stage.log.record(BOB, question, "")
    stage.log.record(BOB, status, "Forbidden")
    stage.log.record(BOB, proto.Request(rebalance=proto.Rebalance()), "")
    stage.log.record(BOB, proto.Request(upgrade_cluster=proto.UpgradeCluster()), "")
    await until(lambda: len(stage.stored) >= 3)
    told = [(each["action"], each["outcome"]) for each in stage.stored]
    assert told == [("rebalance", "Forbidden"), ("rebalance", "ok"), ("upgrade_cluster", "ok")]
    await stage.log.close()


@on_loop
async def test_ordinary_work_and_that_of_brokers_is_not_recorded() -> None:
    stage = Stage()
    stage.log.record(BROKER, CREATION, "")
    stage.log.record(BOB, proto.Request(produce=proto.Produce(topic="orders")), "")
    stage.log.record(BOB, proto.Request(produce=proto.Produce(topic="orders")), "NotLeader")
    stage.log.record(BOB, CREATION, "")
    await until(lambda: stage.stored)
    assert len(stage.stored) == 1
    await stage.log.close()


@on_loop
async def test_records_that_cannot_be_stored_wait_and_too_many_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(system_topic, "RECORDS_MAX", 200)
    stage = Stage()
    stage.is_down = True
    for _ in range(250):
        stage.log.record(BOB, CREATION, "")
    await asyncio.sleep(0)
    stage.is_down = False
    await until(lambda: len(stage.stored) == 200)
    stage.log.record(BOB, CREATION, "")
    await until(lambda: len(stage.stored) == 201)
    assert stage.stored[-1]["left_out_before"] == 50
    await stage.log.close()


@on_loop
async def test_a_flood_of_wrong_tokens_is_recorded_at_a_rate() -> None:
    stage = Stage()
    for _ in range(5_000):
        stage.log.record_sign_in(BOB, Unauthenticated("unknown"))
    await stage.log.close()
    assert 1 <= len(stage.stored) <= 200


@on_loop
async def test_a_huge_request_leaves_a_small_record() -> None:
    stage = Stage()
    stage.log.record(BOB, proto.Request(create_topic=proto.CreateTopic(name="x" * 900_000)), "")
    await stage.log.close()
    assert len(json.dumps(stage.stored)) < 5_000
    assert stage.stored[0]["detail"]["beginning"].startswith('{"name": "xxx')
