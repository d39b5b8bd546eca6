"""`quiver cert`, `quiver up --secure`, and `--tls-ca`: the commands, as documented."""

import re
import shlex
import signal
import ssl
import stat
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from cryptography import x509

from quivermq.cli.app import COMMANDS, LazyCommands, app
from tests.cli.commands import error_line, quiver, quiver_json, quiver_process
from tests.cli.conftest import RunningUp, start_serve, start_up

DOCS = Path(__file__).parents[2] / "docs" / "security.md"


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    folder = tmp_path_factory.mktemp("secure")
    running = start_up("--nodes", "3", "--secure", "--data-dir", str(folder))
    yield running
    code, said = running.stop()
    assert code == 0, said


def connection(running: RunningUp) -> list[str]:
    told = running.told
    return ["--servers", running.servers, "--tls-ca", told["tls_ca"], "--token", told["token"]]


def test_certificates_are_made_with_keys_that_only_the_owner_reads(tmp_path: Path) -> None:
    out = tmp_path / "certificates"
    done = quiver("cert", "--out", out, "--host", "broker-1.example", "--host", "10.1.2.3")
    assert done.returncode == 0, done.stderr
    named = [Path(line).name for line in done.stdout.splitlines()]
    assert named == ["ca.pem", "ca.key", "server.pem", "server.key", "client.pem", "client.key"]
    assert f"quiver serve --tls-cert {out / 'server.pem'}" in done.stderr
    for key in out.glob("*.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    made = x509.load_pem_x509_certificate((out / "server.pem").read_bytes())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == [
        "localhost", "127.0.0.1", "::1", "broker-1.example", "10.1.2.3",
    ]  # fmt: skip


def test_to_make_them_again_renews_them_under_the_same_ca(tmp_path: Path) -> None:
    told = quiver_json("cert", "--out", tmp_path)
    before = {name: Path(name).read_bytes() for name in told["files"]}
    assert quiver_json("cert", "--out", tmp_path) == told
    same = {Path(name).name for name, found in before.items() if Path(name).read_bytes() == found}
    assert same == {"ca.pem", "ca.key"}
    (tmp_path / "ca.key").write_text("nonsense")
    assert "cannot be used again" in error_line(quiver("cert", "--out", tmp_path), 1)
    assert "is no name of a host" in error_line(
        quiver("cert", "--out", tmp_path / "other", "--host", "a..b"), 1
    )


def test_everything_works_with_the_ca_and_nothing_without(secure: RunningUp) -> None:
    options = connection(secure)
    assert quiver("topic", "create", "orders", "--partitions", "3", *options).returncode == 0
    assert quiver("produce", "orders", "hello", "world", *options).returncode == 0
    for command in (["consume", "orders", "--from", "earliest", "--max", "2"], ["topic", "list"]):
        done = quiver(*command, *options)
        assert done.returncode == 0, done.stderr
    assert quiver("doctor", *options).returncode == 0
    variables = {
        "QUIVER_TLS_CA": secure.told["tls_ca"],
        "QUIVER_SERVERS": secure.servers,
        "QUIVER_TOKEN": secure.told["token"],
    }
    assert quiver("cluster", "status", variables=variables).returncode == 0
    said = error_line(quiver("topic", "list", *options[:2], "--timeout", "1s"), 1)
    assert "this broker expects TLS" in said
    assert "--tls-ca" in said
    said = error_line(quiver("topic", "list", "--tls-ca", "nowhere.pem"), 1)
    assert "cannot read the CA certificate nowhere.pem" in said


def test_a_secure_cluster_lets_nobody_in_without_the_admins_token(secure: RunningUp) -> None:
    told = secure.told
    kept = Path(told["token_file"])
    assert kept.read_text().strip() == told["token"]
    for secret in (kept, kept.with_name("cluster-secret")):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    without = connection(secure)[:4]
    said = error_line(quiver("topic", "list", *without), 1)
    assert "a token is needed" in said
    said = error_line(quiver("topic", "list", *without, "--token", "qv_wrong"), 1)
    assert "unknown" in said
    (admin,) = quiver_json("user", "list", *connection(secure))
    assert (admin["name"], [grant["action"] for grant in admin["grants"]]) == ("admin", ["admin"])


def test_a_secure_cluster_that_starts_again_keeps_its_admin_and_prints_how(tmp_path: Path) -> None:
    arguments = ("--nodes", "1", "--secure", "--data-dir", str(tmp_path))
    first = start_up(*arguments)
    token = first.told["token"]
    assert first.stop()[0] == 0
    again = start_up(*arguments)
    # Shown once.
    assert "token" not in again.told
    options = ["--servers", again.servers, "--tls-ca", again.told["tls_ca"], "--token", token]
    assert quiver("topic", "create", "orders", *options).returncode == 0
    assert again.stop()[0] == 0
    (tmp_path / "tls" / "admin-token").unlink()
    lost = quiver_process("up", *arguments)
    assert "whose token is not in" in error_line(lost, 1)


def test_http_is_encrypted_as_well(secure: RunningUp) -> None:
    context = ssl.create_default_context(cafile=secure.told["tls_ca"])
    address = secure.told["nodes"][0]["http"]
    with urllib.request.urlopen(f"https://{address}/health", context=context) as answer:
        assert answer.status == 200
    with pytest.raises(OSError):  # noqa: PT011  (how it fails is the client's business)
        urllib.request.urlopen(f"http://{address}/health", timeout=5)


@pytest.mark.parametrize(
    "name", sorted(set(COMMANDS) - {"serve", "up", "cert", "health", "verify"})
)
def test_every_command_that_connects_takes_the_ca(name: str) -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, LazyCommands)
    _, command, _ = group.resolve_command(typer.Context(group), [name])

    def commands(found: object) -> Iterator[object]:
        below = getattr(found, "commands", None)
        if below is None:
            yield found
        for each in (below or {}).values():
            yield from commands(each)

    for each in commands(command):
        flags = [flag for parameter in each.params for flag in parameter.opts]  # type: ignore[attr-defined]
        assert ("--tls-ca" in flags) == ("--timeout" in flags or "--servers" in flags)


def test_serve_refuses_certificates_that_do_not_fit(tmp_path: Path) -> None:
    quiver_json("cert", "--out", tmp_path)
    flags = ["--tls-cert", tmp_path / "server.pem", "--tls-key", tmp_path / "client.key"]
    said = error_line(quiver_process("serve", "--data-dir", tmp_path / "data", *flags), 1)
    assert "is not the key of the certificate" in said


def test_a_broker_reloads_at_sighup(tmp_path: Path) -> None:
    quiver_json("cert", "--out", tmp_path)
    flags = ["--tls-cert", str(tmp_path / "server.pem"), "--tls-key", str(tmp_path / "server.key"),
             "--tls-ca", str(tmp_path / "ca.pem"), "--tls-reload-ms", "3600000"]  # fmt: skip
    with start_serve(tmp_path, *flags) as serving:
        host, _, port = serving.ready["listen"].partition(":")
        before = ssl.get_server_certificate((host, int(port)))
        quiver_json("cert", "--out", tmp_path)
        assert ssl.get_server_certificate((host, int(port))) == before
        serving.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 20
        while ssl.get_server_certificate((host, int(port))) == before:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        _, said = serving.end()
        assert "certificates are loaded, valid until" in said


def test_the_commands_of_the_documentation_work(tmp_path: Path) -> None:
    """Those of the first block: certificates, a broker, a topic."""
    block = re.search(r"```sh\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert block is not None
    lines = [shlex.split(line, comments=True) for line in block[1].splitlines()]
    make, serve, *clients = [line[1:] for line in lines if line and line[0] == "quiver"]
    assert make[0] == "cert"
    assert serve[0] == "serve"
    assert len(clients) >= 2
    made = quiver(*make, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    flags = [str(tmp_path / word) if "/" in word else word for word in serve[1:]]
    with start_serve(tmp_path, *flags) as serving:
        for client in clients:
            done = quiver(*client, "--servers", serving.ready["listen"], cwd=tmp_path)
            assert done.returncode == 0, done.stderr
