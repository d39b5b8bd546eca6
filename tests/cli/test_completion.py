"""Completion in real shells: commands, options, topics and groups behind the Tab key."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

import quivermq
from tests.cli.commands import quiver
from tests.cli.terminal import ENTER, Terminal
from tests.client.brokers import BrokerThread

SHELLS = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
SET_UP = {
    "bash": 'eval "$(_QUIVER_COMPLETE=source_bash quiver)"',
    "zsh": 'autoload -Uz compinit; compinit -u; eval "$(_QUIVER_COMPLETE=source_zsh quiver)"',
    "fish": "_QUIVER_COMPLETE=source_fish quiver | source",
}


@pytest.fixture
def servers(broker: BrokerThread) -> str:
    return broker.address


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if not shutil.which(name):
        pytest.skip(f"there is no {name} here: apt-get install {name}")
    return name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with `quiver` in its bin, as after an installation."""
    home = tmp_path_factory.mktemp("home")
    command = home / "bin" / "quiver"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m quivermq "$@"\n')
    command.chmod(0o755)
    return home


@pytest.fixture(scope="module")
def names() -> tuple[str, str]:
    return f"zebra-{uuid4().hex[:8]}", f"billing-{uuid4().hex[:8]}"


@contextmanager
def ready(shell: str, home: Path, servers: str) -> Iterator[Terminal]:
    """The shell, once it has loaded the completion."""
    variables = {
        "HOME": str(home),
        "PATH": f"{home / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "QUIVER_SERVERS": servers,
        "XDG_CONFIG_HOME": str(home),
    }
    with Terminal(command=SHELLS[shell], columns=160, **variables) as terminal:
        terminal.press(f"{SET_UP[shell]}; echo rea''dy{ENTER}")
        terminal.wait_until(is_at_prompt)
        yield terminal


def is_at_prompt(text: str) -> bool:
    """Whether the shell has said that it is ready, and asks again. Keys that are pressed before
    that are the terminal's, and some shells never see a Tab among them."""
    lines = [line for line in text.splitlines() if line]
    return "ready" in lines[:-1]


def first(servers: str) -> str:
    return servers.partition(",")[0]


def test_tab_completes_commands_topics_and_groups(
    shell: str, folder: Path, servers: str, names: tuple[str, str]
) -> None:
    topic, group = names
    with quivermq.connect(servers) as client:
        client.create_topic(topic)
        client.poll(topic, group=group, wait=0)
    with ready(shell, folder, servers) as terminal:
        terminal.complete("quiver cons", "quiver consume")
        terminal.complete("zeb", f"quiver consume {topic}")
        terminal.complete("--grou", f"quiver consume {topic} --group")
        terminal.complete("bill", f"quiver consume {topic} --group {group}")


def test_an_installed_completion_works_in_a_new_shell(
    shell: str, folder: Path, tmp_path: Path
) -> None:
    variables = {"HOME": str(tmp_path), "PATH": f"{folder / 'bin'}:/usr/local/bin:/usr/bin:/bin"}
    for _ in range(2):  # a second time changes nothing
        with Terminal(command=SHELLS[shell], columns=160, **variables) as terminal:
            # It writes on after its last line, and a terminal that is closed kills it.
            terminal.press(f"quiver --install-completion && echo rea''dy{ENTER}")
            assert "once you restart the terminal" in terminal.wait_until(is_at_prompt)
    with Terminal(command=[shell, "-i"], columns=160, **variables) as terminal:
        terminal.press(f"echo rea''dy{ENTER}")
        terminal.wait_until(is_at_prompt)
        terminal.complete("quiver consu", "quiver consume")


def test_tab_knows_the_brokers_that_the_line_names(
    shell: str, folder: Path, servers: str, names: tuple[str, str]
) -> None:
    topic, _ = names
    with quivermq.connect(servers) as client:
        client.create_topic(topic)
    with ready(shell, folder, "127.0.0.1:1") as terminal:
        terminal.complete(f"quiver topic describe --servers {first(servers)} zeb", f" {topic}")


def test_bash_splits_words_at_colons_which_are_joined_again(servers: str) -> None:
    with quivermq.connect(servers) as client:
        client.create_topic("completed-3")
    host, _, port = first(servers).partition(":")
    words = ["quiver", "topic", "describe", "--servers", host, ":", port, "completed-3"]
    variables = {
        "_QUIVER_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(len(words) - 1),
        "QUIVER_SERVERS": "127.0.0.1:1",
    }
    for _ in range(10):  # a broker that does not answer within a second completes nothing
        done = quiver(variables=variables)
        if done.stdout.strip():
            break
    assert done.stdout.split() == ["completed-3"]
