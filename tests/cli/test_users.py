"""`quiver user`, `--token` and `--insecure` against a broker with users."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import error_line, quiver, quiver_json, quiver_process
from tests.cli.conftest import FREE_PORTS, start_serve


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with start_serve(tmp_path_factory.mktemp("users"), "--users") as found:
        yield found.ready["listen"]


@pytest.fixture(scope="module")
def admin(server: str) -> str:
    """The token of the first admin."""
    at = ("--servers", server)
    made = quiver_json("user", "add", "root", *at)
    assert set(made) == {"name", "token"}
    assert made["name"] == "root"
    granted = quiver("user", "grant", "root", "admin", *at)
    assert granted.stdout == "root may admin\n", granted.stderr
    return str(made["token"])


def test_a_user_is_added_granted_listed_revoked_and_removed(server: str, admin: str) -> None:
    at, me = ("--servers", server), {"QUIVER_TOKEN": admin}
    made = quiver("user", "add", "bob", "--expires", "1d", *at, variables=me)
    token = made.stdout.strip()
    assert token.startswith("qv_")
    assert "shown only here" in made.stderr
    assert "there is a user" in error_line(quiver("user", "add", "bob", *at, variables=me), 1)
    for arguments in (
        ("produce", "--topic", "orders"),
        ("consume", "--topic", "orders", "--group", "b"),
    ):
        done = quiver("user", "grant", "bob", *arguments, *at, variables=me)
        assert done.returncode == 0, done.stderr
    assert quiver("topic", "create", "orders", "--token", admin, *at).returncode == 0
    produced = quiver("produce", "orders", "hello", "--token", token, *at)
    assert produced.returncode == 0, produced.stderr
    consumed = quiver(
        "consume", "orders", "--group", "b1", "--max", "1", "--token", token, *at
    )  # fmt: skip
    assert "hello" in consumed.stdout, consumed.stderr
    listed = quiver_json("user", "list", *at, variables=me)
    (bob,) = (each for each in listed if each["name"] == "bob")
    assert bob["grants"] == [
        {"action": "produce", "topic": "orders", "group": ""},
        {"action": "consume", "topic": "orders", "group": "b"},
    ]
    assert token not in json.dumps(listed)
    table = quiver("user", "list", *at, variables=me).stdout
    assert "consume topics orders* as groups b*" in table

    forbidden = quiver("topic", "delete", "orders", "--yes", "--token", token, *at)
    assert "user bob may not administer topic 'orders'" in error_line(forbidden, 1)
    revoked = quiver("user", "revoke", "bob", "produce", "--topic", "orders", *at, variables=me)
    assert revoked.stdout == "bob may no longer produce topics orders*\n"
    refused = quiver("produce", "orders", "x", "--token", token, *at)
    assert "may not produce to topic 'orders'" in error_line(refused, 1)
    assert quiver("user", "revoke", "bob", *at, variables=me).returncode == 0
    assert quiver("user", "remove", "bob", *at, variables=me).stdout == "user bob is removed\n"
    gone = quiver("topic", "list", "--token", token, *at)
    assert "unknown, was revoked or has expired" in error_line(gone, 1)


def test_a_broker_without_an_admin_tells_how_to_make_one(tmp_path: Path) -> None:
    with start_serve(tmp_path, "--users") as found:
        said = found.end()[1]
    assert f"quiver user add NAME --servers {found.ready['listen']}" in said


def test_every_command_that_connects_takes_a_token(server: str, admin: str) -> None:
    del admin
    at = ("--servers", server, "--timeout", "2s")
    for arguments in (
        ("topic", "list"),
        ("group", "list"),
        ("cluster", "status"),
        ("user", "list"),
        ("dlq", "list", "orders"),
        ("produce", "orders", "x"),
        ("consume", "orders", "--from", "earliest"),
    ):
        assert "a token is needed" in error_line(quiver(*arguments, *at), 1)
        wrong = quiver(*arguments, "--token", "qv_wrong", *at)
        assert "token is unknown" in error_line(wrong, 1), arguments


def test_wrong_usage_is_told(server: str, admin: str) -> None:
    at, me = ("--servers", server), {"QUIVER_TOKEN": admin}
    assert quiver("user", "grant", "root", "fly", *at, variables=me).returncode == 2
    assert "only admin" in error_line(quiver("user", "remove", "root", *at, variables=me), 1)
    prefix = quiver("user", "revoke", "root", "--topic", "x", *at, variables=me)
    assert "name the action" in error_line(prefix, 1)


def test_a_broker_refuses_to_be_open_and_says_so_if_it_must(tmp_path: Path) -> None:
    ports = [*FREE_PORTS, "--data-dir", str(tmp_path / "d")]
    refused = quiver_process("serve", *ports, "--listen", "0.0.0.0:0")
    assert refused.returncode == 1
    assert "--insecure" in refused.stderr
    assert not (tmp_path / "d").exists()
    with start_serve(tmp_path, "--listen", "0.0.0.0:0", "--insecure") as found:
        said = found.end()[1]
    assert "INSECURE: listen 0.0.0.0:0 is open" in said


def test_the_secret_is_not_shown(tmp_path: Path) -> None:
    secret = "0123456789abcdef0123"
    for more in ((), ("--json",)):
        shown = quiver(
            "serve", "--print-config", *more, variables={"QUIVER_CLUSTER_SECRET": secret}
        )
        assert shown.returncode == 0, shown.stderr
        assert secret not in shown.stdout
        assert "QUIVER_CLUSTER_SECRET" in shown.stdout
    wrong = quiver_process(
        "serve", *FREE_PORTS, "--data-dir", tmp_path / "d", "--users", "--join", "127.0.0.1:1"
    )
    assert "cluster_secret" in error_line(wrong, 2)
