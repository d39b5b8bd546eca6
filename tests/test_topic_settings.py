"""The descriptions of a topic's settings, against the places that follow them."""

import inspect
from dataclasses import fields

import pytest

from quivermq.cli.topic_settings import OPTIONS
from quivermq.client import Client, RateLimit, Retention, Retry, TopicInfo
from quivermq.cluster import Level
from quivermq.queue import TopicSettings
from quivermq.topic_settings import LEADER_ONLY, REPLICATED, SETTINGS, Setting
from quivermq.wire import proto

CLASSES = {"retention": Retention, "rate_limit": RateLimit, "retry": Retry}


def test_every_setting_is_a_field_on_the_wire_and_every_field_a_setting() -> None:
    on_wire = proto.TopicSettings.DESCRIPTOR.fields_by_name
    assert [setting.name for setting in SETTINGS] == list(on_wire)
    # Only where a field can be unset does a request leave the setting as it is.
    assert [name for name in on_wire if on_wire[name].has_presence] == [
        setting.name for setting in LEADER_ONLY
    ]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_has_its_argument_and_its_option(setting: Setting) -> None:
    for call in (Client.create_topic, Client.alter_topic, TopicInfo):
        assert setting.argument in inspect.signature(call).parameters
    if setting.part:
        assert setting.part in {each.name for each in fields(CLASSES[setting.argument])}
    assert setting.option in OPTIONS


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_the_client_has_the_defaults_of_the_broker(setting: Setting) -> None:
    shown = setting.from_stored(setting.default)
    if setting.argument in {"retention", "retry"}:
        assert getattr(CLASSES[setting.argument](), setting.part) == shown
    elif setting.argument == "max_deliveries":
        assert inspect.signature(Client.create_topic).parameters["max_deliveries"].default == shown
    assert setting.to_stored(shown) == setting.default


def test_bytes_of_settings_stay_as_earlier_releases_wrote_them() -> None:
    assert TopicSettings(retention_ms=5).encode() == (
        b'{"dead_letter":"","delete_acked":false,"keep_until_archived":false,"max_deliveries":5,'
        b'"rate_burst":1,"rate_per_second":0.0,"retention_bytes":0,"retention_messages":0,'
        b'"retention_ms":5,"retry_base_ms":1000,"retry_first_ms":0,"retry_longest_ms":60000}'
    )


def test_settings_of_a_higher_level_are_those_of_leaders() -> None:
    assert all(setting.level == 1 for setting in REPLICATED)
    assert {setting.name: setting.level for setting in LEADER_ONLY} == {
        "group_idle_ms": Level.IDLE_GROUPS,
        "drop_expired": Level.EXPIRY,
    }
