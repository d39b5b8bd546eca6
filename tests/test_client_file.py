"""The file that says how to connect: read by programs and by the command line."""

import logging
from pathlib import Path

import pytest

import quivermq
from quivermq.client import ConnectOptions
from quivermq.client_file import ClientFile, read_client_file
from quivermq.errors import InvalidRequest
from tests.cli.commands import error_line, quiver, quiver_json
from tests.client.brokers import BrokerThread


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this user's file is; there is none yet."""
    for name in ("QUIVER_SERVERS", "QUIVER_TOKEN", "QUIVER_TLS_CA", "QUIVER_CLIENT_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "quiver" / "client.toml"
    path.parent.mkdir()
    return path


def write(file: Path, text: str, mode: int = 0o600) -> None:
    file.write_text(text)
    file.chmod(mode)


def test_without_a_file_nothing_is_said(file: Path) -> None:
    assert read_client_file() == ClientFile()


def test_all_settings_are_read(file: Path) -> None:
    write(file, 'servers = ["a:1", "b:2"]\ntoken = "qv_x"\ntls_ca = "ca.pem"\ntimeout = "1m"\n')
    assert read_client_file() == ClientFile("a:1,b:2", "qv_x", str(file.parent / "ca.pem"), 60.0)
    write(file, 'servers = "a:1"\ntls_ca = "system"\ntimeout = 3\n')
    assert read_client_file() == ClientFile("a:1", None, "system", 3.0)


def test_the_usual_place_is_in_the_home_folder(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    place = tmp_path / "home/.config/quiver/client.toml"
    place.parent.mkdir(parents=True)
    write(place, 'servers = "home:1"\n')
    assert read_client_file().servers == "home:1"


def test_a_variable_names_another_file_or_none(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(file, 'servers = "usual:1"\n')
    write(tmp_path / "other.toml", 'servers = "other:1"\n')
    monkeypatch.setenv("QUIVER_CLIENT_CONFIG", str(tmp_path / "other.toml"))
    assert read_client_file().servers == "other:1"
    monkeypatch.setenv("QUIVER_CLIENT_CONFIG", "")
    assert read_client_file() == ClientFile()
    monkeypatch.setenv("QUIVER_CLIENT_CONFIG", str(tmp_path / "missing.toml"))
    with pytest.raises(InvalidRequest, match="there is no file"):
        read_client_file()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("server = 'a:1'", "server is not a setting of clients: did you mean servers?"),
        ("zzz = 1", "it may have servers, token, tls_ca, timeout"),
        ("servers = 3", "servers is text in quotes, not 3"),
        ("timeout = 'soon'", "timeout: 'soon' is not a duration"),
        ("timeout = 0", "timeout must be more than 0"),
        ("servers", "is not TOML"),
        (f"timeout = {'1' * 5000}", "is not TOML: a number has too many digits"),
        (f"timeout = {'[' * 5000}", "is not TOML: brackets are nested too deeply"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_what_is_wrong(file: Path, text: str, told: str) -> None:
    write(file, text)
    with pytest.raises(InvalidRequest) as raised:
        read_client_file()
    assert str(raised.value).startswith(str(file))
    assert told in str(raised.value)


def test_the_argument_wins_over_the_environment_and_that_over_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(file, 'servers = "file:1"\ntoken = "of the file"\ntimeout = 7\n')

    def made(servers: str | None = None, token: str | None = None) -> tuple[object, ...]:
        options = ConnectOptions.of(servers, token=token, tls=None, timeout=None)
        return options.servers, options.token, options.timeout

    assert made() == (["file:1"], "of the file", 7.0)
    monkeypatch.setenv("QUIVER_SERVERS", "variable:1")
    monkeypatch.setenv("QUIVER_TOKEN", "of the variable")
    assert made() == (["variable:1"], "of the variable", 7.0)
    assert made("argument:1", "of the argument") == (["argument:1"], "of the argument", 7.0)


def test_the_ca_of_the_file_is_used(file: Path) -> None:
    write(file, 'tls_ca = "missing.pem"\n')
    with pytest.raises(InvalidRequest, match=r"missing\.pem"):
        ConnectOptions.of(None, token=None, tls=None, timeout=None)


def test_a_token_that_others_may_read_is_warned_of(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(file, 'token = "secret words"\n', mode=0o644)
    with caplog.at_level(logging.WARNING, "quivermq.client"):
        assert read_client_file().token == "secret words"
        read_client_file()
    (told,) = caplog.messages
    assert f"chmod 600 {file}" in told
    assert "secret words" not in told


def test_a_file_of_the_owner_alone_or_without_a_token_is_not_warned_of(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(file, 'token = "x"\n')
    read_client_file()
    write(file, 'servers = "a:1"\n', mode=0o644)
    read_client_file()
    assert not caplog.messages


def test_programs_and_commands_connect_by_the_file_alone(file: Path, tmp_path: Path) -> None:
    broker = BrokerThread(tmp_path / "data")
    try:
        write(file, f'servers = "{broker.address}"\n')
        with quivermq.connect() as client:
            client.create_topic("orders")
        place = {"QUIVER_CLIENT_CONFIG": str(file)}
        assert [topic["name"] for topic in quiver_json("topic", "list", variables=place)] == [
            "orders"
        ]
        write(file, "servers = 3")
        assert str(file) in error_line(quiver("topic", "list", variables=place), 2)
    finally:
        broker.stop()
