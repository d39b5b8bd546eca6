"""One name, one way to consume; and groups that are not consumers'."""

import pytest

import quivermq
from quivermq.errors import InvalidRequest


def test_a_shared_group_cannot_become_sticky_and_get_everything_again(
    real: quivermq.Client, topic: str
) -> None:
    real.produce_many(topic, [b"v"] * 3)
    real.ack(real.poll(topic, group="g", max_messages=3))
    with (
        real.consumer(topic, group="g") as consumer,
        pytest.raises(InvalidRequest, match="delete the group first"),
    ):
        consumer.poll(wait=10)
    with pytest.raises(InvalidRequest, match="another name"):
        real.commit(topic, group="g", partition=0, offset=1)
    assert real.group(topic, "g").done == 3
    real.delete_group(topic, "g")
    with real.consumer(topic, group="g") as consumer:
        assert len(consumer.poll(wait=10)) == 3


def test_a_sticky_group_that_becomes_shared_goes_on_from_where_it_was(
    real: quivermq.Client, topic: str
) -> None:
    real.produce_many(topic, [b"v"] * 3)
    with real.consumer(topic, group="g") as consumer:
        assert len(consumer.poll(max_messages=2, wait=10)) == 2
        consumer.commit()
    assert [message.offset for message in real.poll(topic, group="g")] == [2]


def test_a_sticky_group_stays_one_without_members(real: quivermq.Client, topic: str) -> None:
    real.produce(topic, b"v")
    with real.consumer(topic, group="g") as consumer:
        assert len(consumer.poll(wait=10)) == 1
    real.commit(topic, group="other", partition=0, offset=0)
    modes = {group.name: (group.mode, group.members) for group in real.groups(topic)}
    assert modes == {"g": ("sticky", []), "other": ("single", [])}


def test_an_archive_is_shown_and_can_be_forgotten(real: quivermq.Client, topic: str) -> None:
    real.produce_many(topic, [b"v"] * 3)
    archive = "_archive.3f2b8c1e-0d4a-4f6b-9c7e-1a2b3c4d5e6f"
    real.commit(topic, archive, 0, 1)
    for refused in ("_archive.typo", "_archive.", "_published", "_other"):
        with pytest.raises(InvalidRequest, match="_"):
            real.commit(topic, refused, 0, 1)
    (group,) = real.groups(topic)
    assert (group.name, group.mode, group.lag) == (archive, "archive", 2)
    assert real.group(topic, archive) == group
    for refused in ("_published", "_other"):
        with pytest.raises(InvalidRequest, match="begin with _"):
            real.delete_group(topic, refused)
    real.delete_group(topic, archive)
    assert real.groups(topic) == []
