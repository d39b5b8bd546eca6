"""The catalog through its replica: changed once, by who leads, and read as far as it can be."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from quivermq.cluster import Edit, View
from quivermq.errors import InvalidRequest, QuiverError
from quivermq.transports import Server
from tests.node.cluster_stage import cluster
from tests.transports.stage import Talker, make_topic, on_loop, serving, until


@on_loop
async def test_changes_at_once_are_all_made_and_each_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        metadata = server.broker.metadata
        before = metadata.view.version

        async def add(number: int) -> None:
            def build(view: View) -> Edit:
                count = view.values.get("count", 0)
                return Edit({"count": count + 1, f"made/{number}": count})

            await metadata.edit(build)

        await asyncio.gather(*(add(number) for number in range(40)))
        values = metadata.view.values
        assert values["count"] == 40
        assert metadata.view.version == before + 40
        made = Counter(value for key, value in values.items() if key.startswith("made/"))
        assert made == Counter(range(40))


@on_loop
async def test_an_edit_that_was_made_from_an_older_version_is_built_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        metadata = server.broker.metadata
        seen: list[int] = []

        def build(view: View) -> Edit:
            seen.append(view.version)
            if len(seen) == 1:
                assert metadata.hosted is not None
                put = {"between": 1}
                version, now_ms = view.version, metadata.hosted.now_ms()
                metadata.hosted.submit(
                    lambda _: None,
                    lambda replica, token: replica.change_catalog(token, version, put, (), now_ms),
                )
            return Edit({"mine": len(seen)})

        view = await metadata.edit(build)
        assert seen == [seen[0], seen[0] + 1]
        assert (view.values["between"], view.values["mine"]) == (1, 2)


@on_loop
async def test_a_refusal_that_was_made_from_an_older_version_does_not_count(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        metadata = server.broker.metadata
        seen: list[int] = []

        def build(view: View) -> Edit:
            seen.append(view.version)
            if "between" not in view.values:
                if len(seen) == 1:
                    assert metadata.hosted is not None
                    put, version, now_ms = {"between": 1}, view.version, metadata.hosted.now_ms()
                    metadata.hosted.submit(
                        lambda _: None,
                        lambda replica, token: replica.change_catalog(
                            token, version, put, (), now_ms
                        ),
                    )
                raise InvalidRequest("2 brokers can hold a replica")
            return Edit({"mine": 1})

        view = await metadata.edit(build)
        assert view.values["mine"] == 1
        assert seen == [seen[0], seen[0] + 1]
        with pytest.raises(InvalidRequest):
            await metadata.edit(_refuse)


def _refuse(_: View) -> Edit:
    raise InvalidRequest("never")


@on_loop
async def test_a_catalog_that_cannot_be_read_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as server:
        talker = await Talker.by_socket(server)
        await make_topic(talker)
        metadata = server.broker.metadata
        group, view = metadata.leading_replica(), metadata.view
        put = {"topic/bad": {"name": "bad"}}
        await group.call(
            lambda replica, token: replica.change_catalog(
                token, view.version, put, (), group.now_ms()
            ),
        )
        assert metadata.view is view
        assert caplog.text.count("is not readable") == 1
        assert group.trouble == ""
        with pytest.raises(QuiverError):
            await metadata.edit(lambda _: Edit({"more": 1}))
        # Once it can be read again, everything goes on.
        delete = ["topic/bad"]
        await group.call(
            lambda replica, token: replica.change_catalog(
                token, view.version + 1, {}, delete, group.now_ms()
            ),
        )
        assert metadata.view.version == view.version + 2
        await metadata.edit(lambda _: Edit({"more": 1}))
        talker.close()


@on_loop
async def test_a_catalog_that_is_replayed_does_not_take_the_view_back(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        metadata = server.broker.metadata
        view = metadata.view
        # As if the replica had been made anew, and had replayed all but the last change.
        metadata.view = later = view.updated(view.version + 1, {**view.values, "later": 1})
        metadata.refresh()
        assert metadata.view is later
        metadata.view = view


def deafened(server: Server) -> None:
    """It hears no other broker any more, and does not know it yet."""
    server.broker.links.hooks.deliver = lambda *_: None


@on_loop
async def test_a_leader_that_may_be_deposed_does_not_say_that_nothing_is_to_change(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as brokers:
        leader = brokers.running[1].broker.metadata.leader
        server = brokers.running[leader]
        metadata = server.broker.metadata
        assert await metadata.edit(lambda _: None) is metadata.view
        deafened(server)
        assert metadata.is_leader
        with pytest.raises(QuiverError):
            await metadata.edit(lambda _: None)
        others = [node for node in brokers.running if node != leader]
        await until(lambda: any(brokers.running[node].broker.metadata.is_leader for node in others))
