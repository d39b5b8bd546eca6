"""Settings of a broker: flag over environment over file over default, and where each came from."""

import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pydantic import SecretStr

from quivermq.cli import configuration
from quivermq.cli.errors import UsageError
from quivermq.settings import BrokerSettings
from tests.cli.commands import error_line, quiver, quiver_json


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the files and variables of the user who runs the tests."""
    monkeypatch.chdir(tmp_path)
    for name in BrokerSettings.model_fields:
        monkeypatch.delenv(f"QUIVER_{name.upper()}", raising=False)


def printable(*arguments: str, **options: Any) -> dict[str, tuple[Any, str]]:
    found = quiver_json("serve", "--print-config", *arguments, **options)
    return {name: (entry["value"], entry["from"]) for name, entry in found.items()}


def test_a_flag_wins_over_the_environment_over_the_file_over_the_default(tmp_path: Path) -> None:
    (tmp_path / "quiver.toml").write_text(
        'tick_ms = 50\nfsync = "never"\nnode_id = 7\ndefault_partitions = 3\n'
    )
    found = printable(
        "--fsync", "interval",
        cwd=tmp_path,
        variables={"QUIVER_FSYNC": "always", "QUIVER_NODE_ID": "9"},
    )  # fmt: skip
    assert found["fsync"] == ("interval", "--fsync")
    assert found["node_id"] == (9, "QUIVER_NODE_ID")
    assert found["tick_ms"] == (50, "quiver.toml")
    assert found["default_partitions"] == (3, "quiver.toml")
    assert found["listen"] == ("127.0.0.1:7600", "default")
    assert found.keys() == BrokerSettings.model_fields.keys()


@pytest.mark.parametrize("name", BrokerSettings.model_fields)
def test_every_setting_can_be_set_by_flag_variable_and_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = _another_value(name)
    text = _as_text(value)
    if name == "gateway":  # not without join
        monkeypatch.setenv("QUIVER_JOIN", "a:7600")
    by_flag = configuration.load({name: text})
    assert (_plain(by_flag.settings, name), by_flag.sources[name]) == (value, _flag(name))

    file = tmp_path / "other.toml"
    file.write_text(f"{name} = {_as_toml(value)}\n")
    by_file = configuration.load({}, file)
    assert (_plain(by_file.settings, name), by_file.sources[name]) == (value, str(file))

    monkeypatch.setenv(f"QUIVER_{name.upper()}", text)
    by_variable = configuration.load({})
    assert _plain(by_variable.settings, name) == value
    assert by_variable.sources[name] == f"QUIVER_{name.upper()}"


def _plain(settings: BrokerSettings, name: str) -> Any:
    found = getattr(settings, name)
    return found.get_secret_value() if isinstance(found, SecretStr) else found


def test_every_setting_has_a_flag() -> None:
    arguments: list[str] = []
    for name in BrokerSettings.model_fields:
        value = _another_value(name)
        if name in {"join", "gateway"}:  # not together with peers
            continue
        if value is False:
            arguments.append(f"--no-{name.replace('_', '-')}")
        else:
            arguments += [_flag(name)] if value is True else [_flag(name), _as_text(value)]
    found = printable(*arguments)
    for name, (_, origin) in found.items():
        assert origin == ("default" if name in {"join", "gateway"} else _flag(name))


def test_the_file_is_named_by_flag_or_variable_and_must_exist(tmp_path: Path) -> None:
    file = tmp_path / "elsewhere.toml"
    file.write_text('peers = {2 = "b:7700", 3 = "c:7700"}\n')
    assert printable("--config", str(file))["peers"] == ({"2": "b:7700", "3": "c:7700"}, str(file))
    assert printable(variables={"QUIVER_CONFIG": str(file)})["peers"][1] == str(file)
    line = error_line(quiver("serve", "--print-config", "--config", "nowhere.toml"), 2)
    assert "there is no file nowhere.toml" in line


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("fsyncc = 'never'\n", "quiver.toml: fsyncc is not a setting: did you mean fsync?"),
        ("xyzzy = 1\n", "quiver.toml: xyzzy is not a setting"),
        ("node-id = 1\n", "quiver.toml: node-id is not a setting: did you mean node_id?"),
        ("fsync = 'sometimes'\n", "quiver.toml: fsync: must be 'always', 'interval' or 'never'"),
        ("node_id = 0\n", "quiver.toml: node_id: must be at least 1, not 0"),
        ("listen = '7600'\n", "quiver.toml: listen: '7600' is not an address"),
        ("fsync = \n", "quiver.toml is not TOML"),
        (f"tick_ms = {'1' * 5000}", "quiver.toml is not TOML: a number has too many digits"),
        (f"tick_ms = {'[' * 5000}", "quiver.toml is not TOML: brackets are nested too deeply"),
        ("peers = {1 = 'a:7700'}\n", "peers names node 1 itself"),
        ("join = 'a:7600'\npeers = {2 = 'a:7700'}\n", "set only one of them"),
    ],
)
def test_an_error_in_the_file_is_one_line_that_names_the_setting(
    tmp_path: Path, content: str, complaint: str
) -> None:
    (tmp_path / "quiver.toml").write_text(content)
    with pytest.raises(UsageError) as caught:
        configuration.load({})
    assert str(caught.value).startswith(complaint) or complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "variables", "complaint"),
    [
        (["--node-id", "x"], {}, "'--node-id': must be a whole number, not 'x'"),
        (
            ["--segment-bytes", "64XB"],
            {},
            "--segment-bytes: '64XB' is not a size: write 512, 64KiB",
        ),
        (["--tick-ms", "1y"], {}, "--tick-ms: '1y' is not a duration: write 500ms"),
        ([], {"QUIVER_NODE_ID": "x"}, "QUIVER_NODE_ID: must be a whole number, not 'x'"),
        ([], {"QUIVER_USERS": "perhaps"}, "QUIVER_USERS: must be true or false, not 'perhaps'"),
        ([], {"QUIVER_SEGMENT_BYTES": "1kB"}, "QUIVER_SEGMENT_BYTES: must be at least 65536"),
        (["--node-id", "70000"], {}, "--node-id: must be at most 65535, not 70000"),
        (["--peers", "2:a:1"], {}, "--peers: write 2=host:port,3=host:port"),
        (["--peers", "2=a:1,2=b:1"], {}, "--peers: node 2 is named twice"),
        (["--listen", "::1:7600"], {}, "--listen: an IPv6 address stands in brackets"),
        ([], {"QUIVER_TICK_MS": "soon"}, "QUIVER_TICK_MS: 'soon' is not a duration"),
    ],
)
def test_wrong_flags_and_variables_are_named_and_exit_2(
    arguments: list[str], variables: dict[str, str], complaint: str
) -> None:
    done = quiver("serve", "--print-config", *arguments, variables=variables)
    assert complaint in error_line(done, 2)


def test_sizes_and_durations_may_have_units_in_every_source(tmp_path: Path) -> None:
    file = tmp_path / "quiver.toml"
    file.write_text("message_bytes_max = '2MiB'\nidle_timeout_ms = '1h'\nbatch_bytes_max = 4096\n")
    flags = {"segment_bytes": "64MB", "tick_ms": "250"}
    with mock.patch.dict(os.environ, {"QUIVER_REQUEST_BYTES_MAX": "1GiB"}):
        found = configuration.load(flags, file).settings
    assert (found.segment_bytes, found.tick_ms) == (64_000_000, 250)
    assert (found.message_bytes_max, found.idle_timeout_ms) == (2 << 20, 3_600_000)
    assert (found.batch_bytes_max, found.request_bytes_max) == (4_096, 1 << 30)


def test_an_unknown_variable_is_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIVER_SERVERS", "a:7600")
    monkeypatch.setenv("QUIVER_NODEID", "1")
    warnings = configuration.unknown_variables()
    assert warnings == ["QUIVER_NODEID is not a setting: did you mean QUIVER_NODE_ID?"]


def test_print_config_shows_values_as_they_are_written() -> None:
    done = quiver("serve", "--print-config", "--peers", "2=b:7700,3=c:7700")
    rows = [line.split() for line in done.stdout.splitlines() if line.strip()]
    assert ["peers", "2=b:7700,3=c:7700", "--peers"] in rows
    assert ["auto_create_topics", "false", "default"] in rows
    assert "\x1b" not in done.stdout


def _another_value(name: str) -> Any:
    """A value of the right kind that is not the default."""
    field = BrokerSettings.model_fields[name]
    default = field.get_default(call_default_factory=True)
    choices = {
        "peers": {3: "127.0.0.1:7701"},
        "fsync": "never",
        "log_level": "debug",
        "log_format": "json",
        "data_dir": "elsewhere",
        "zone": "eu-1a",
    }
    if name in choices:
        return choices[name]
    if isinstance(default, bool):
        return not default
    return default + 1 if isinstance(default, int) else "127.0.0.2:7000"


def _as_text(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{node}={address}" for node, address in value.items())
    return str(value)


def _as_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f'{key} = "{item}"' for key, item in value.items()) + "}"
    return json.dumps(value)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def test_the_documentation_lists_every_setting_with_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
    for name, field in BrokerSettings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        text = _as_text(default)
        shown_default = f"`{text.lower() if isinstance(default, bool) else text}`" if text else ""
        assert f"| `{name}` | {shown_default} | {field.description} |" in page
