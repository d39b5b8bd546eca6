"""The command `quiver`: help, lazy imports, error lines, completion."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer

import quivermq
from quivermq.cli.app import COMMANDS
from tests.cli.commands import environment, error_line, quiver


def test_help_names_every_command_and_exits_0() -> None:
    done = quiver("--help")
    assert done.returncode == 0
    for name, (panel, purpose) in COMMANDS.items():
        assert name in done.stdout
        assert panel in done.stdout
        assert purpose in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_exists_and_has_help(name: str) -> None:
    command = typer.main.get_command(import_module(f"quivermq.cli.{name}").app)
    assert command.help or command.commands  # type: ignore[attr-defined]
    done = quiver(name, "--help")
    assert done.returncode == 0
    assert f"quiver {name}" in done.stdout


def modules_of(heavy: set[str], *arguments: str) -> str:
    """Which of these modules a command imports; it must succeed."""
    program = (
        "import sys; from quivermq.cli import main\n"
        f"sys.argv = ['quiver', *{list(arguments)!r}]\n"
        "try: main()\n"
        f"finally: print(sorted({heavy!r} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    )
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("arguments", [["--help"], ["topic", "--help"], ["produce", "--help"]])
def test_help_loads_none_of_the_heavy_libraries(arguments: list[str]) -> None:
    assert modules_of({"pyarrow", "quivermq.client", "fastapi"}, *arguments) == "[]"


def test_the_version_loads_what_parses_the_flag_and_no_more() -> None:
    heavy = {"pyarrow", "pydantic", "asyncio", "quivermq.client", "google.protobuf"}
    assert modules_of(heavy, "--version") == "[]"


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "list"],
        ["cluster", "status"],
        ["doctor"],
        ["user", "list"],
        ["top", "--once", "--interval", "100ms"],
    ],
)
def test_a_command_that_only_administers_never_loads_arrow(
    arguments: list[str], servers: str
) -> None:
    heavy = {"pyarrow", "numpy", "pandas", "prompt_toolkit", "grpc", "fastapi", "pydantic_settings"}
    assert modules_of(heavy, *arguments, "--servers", servers) == "[]"


def test_no_arguments_show_the_help_and_count_as_wrong_usage() -> None:
    done = quiver()
    assert done.returncode == 2
    assert "Usage: quiver" in done.stdout + done.stderr
    assert "error:" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["topics"], "No such command 'topics'. Did you mean 'topic', 'top'?"),
        (["--nonsense"], "No such option: --nonsense"),
        (["topic", "create"], "Missing argument 'TOPIC'"),
        (["topic", "create", "a", "--max-age", "3x"], "'3x' is not a duration: write 500ms"),
        (["topic", "create", "a", "--max-bytes", "3x"], "'3x' is not a size: write 512"),
        (["topic", "alter", "a"], "say what to change: --partitions"),
        (["produce", "a", "v", "--header", "novalue"], "write --header name=value"),
        (["produce", "a", "v", "--key", "k", "--key-separator", ":"], "give one of them"),
        (["produce", "a", "v", "--priority", "8"], "--priority"),
        (["consume", "a", "--mode", "shared"], "--mode"),
        (["consume", "a", "--from", "yesterday"], "'yesterday' is not a time"),
        (["cluster", "transfer", "orders", "--to", "2"], "name a topic and a partition"),
        (["bench", "--servers", "a:1", "--fsync", "never"], "leave --servers out"),
        (["up", "--nodes", "0"], "--nodes"),
    ],
)
def test_wrong_usage_is_one_line_that_says_what_to_write(
    arguments: list[str], complaint: str
) -> None:
    assert complaint in error_line(quiver(*arguments), 2)


def test_an_unreachable_broker_is_one_error_line_and_exit_code_1(tmp_path: Path) -> None:
    done = quiver("topic", "list", "--servers", "127.0.0.1:1", "--timeout", "200ms")
    assert "127.0.0.1:1" in error_line(done, 1)


def completed(words: str, **variables: str) -> str:
    """The words that bash offers when Tab is pressed behind these."""
    return quiver(
        variables={
            "_QUIVER_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
            **variables,
        }
    ).stdout


def test_bash_completes_commands_and_options() -> None:
    assert completed("quiver topi").split() == ["topic"]
    assert completed("quiver topic des").split() == ["describe"]
    assert "--fsync-interval-ms" in completed("quiver serve --fs")
    assert completed("quiver serve --fsync ").split() == ["always", "interval", "never"]


def test_bash_completes_topics_and_groups(servers: str) -> None:
    with quivermq.connect(servers) as client:
        client.create_topic("completed-1")
        client.create_topic("completed-2")
        client.poll("completed-1", group="billing", wait=0)
    at = {"QUIVER_SERVERS": servers}
    both = ["completed-1", "completed-2"]
    assert completed("quiver produce compl", **at).split() == both
    assert completed(f"quiver topic describe --servers {servers} compl").split() == both
    assert completed("quiver group describe completed-1 ", **at).split() == ["billing"]
    offered = completed("quiver consume ", **at).split()
    assert set(both) <= set(offered)
    assert "_events" not in offered
    assert completed("quiver consume _ev", **at).split() == ["_events"]


def test_without_brokers_nothing_is_completed_and_nothing_said() -> None:
    assert not completed("quiver produce compl", QUIVER_SERVERS="127.0.0.1:1").strip()


def test_an_address_that_is_none_is_wrong_usage() -> None:
    refused = quiver("topic", "list", "--servers", "127.0.0.1:99999")
    assert "--servers: '127.0.0.1:99999' is not an address" in error_line(refused, 2)
