"""The greeting of a JVM at its start, which is kept from standard error."""

import subprocess

import pytest

from quivermq.cli.archive import greeting_aside

GREET = ["/bin/sh", "-c", "echo Setting default log level >&2"]


def test_the_greeting_of_a_jvm_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with greeting_aside():
        subprocess.run(GREET, check=True)
    subprocess.run(["/bin/sh", "-c", "echo later >&2"], check=True)
    assert capfd.readouterr().err == "later\n"


def test_it_is_shown_if_the_start_fails(capfd: pytest.CaptureFixture[str]) -> None:
    failing = [*GREET[:2], f"{GREET[2]}; exit 1"]
    with pytest.raises(subprocess.CalledProcessError), greeting_aside():
        subprocess.run(failing, check=True)
    assert capfd.readouterr().err == "Setting default log level\n"


def test_it_is_shown_for_debugging(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIVER_DEBUG", "1")
    with greeting_aside():
        subprocess.run(GREET, check=True)
    assert "Setting" in capfd.readouterr().err
