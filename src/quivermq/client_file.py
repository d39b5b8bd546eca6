"""Reads the file that says how to connect, for clients that are told nothing else.

The command line and programs read the same one: `~/.config/quiver/client.toml`, or the one that the
variable `QUIVER_CLIENT_CONFIG` names (set to nothing: none). An argument wins over the environment,
and the environment over the file.
"""

import logging
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from quivermq.errors import InvalidRequest
from quivermq.quantities import parse_duration
from quivermq.validation import explain_toml

logger = logging.getLogger("quivermq.client")

FILE_VARIABLE: Final = "QUIVER_CLIENT_CONFIG"
_SYSTEM: Final = "system"
_OTHERS: Final = 0o077
"""The rights of everybody but the owner."""


@dataclass(frozen=True, slots=True)
class ClientFile:
    """The settings in the file; None: it does not say."""

    servers: str | None = None
    token: str | None = None
    tls_ca: str | None = None
    timeout: float | None = None
    zone: str | None = None


def read_client_file() -> ClientFile:
    """The settings of this user's file; empty if there is none. Raises `InvalidRequest` for a file
    that is no TOML, or has a key that is no setting."""
    named = os.environ.get(FILE_VARIABLE)
    if named == "":
        return ClientFile()
    path = Path(named).expanduser() if named else _usual_path()
    try:
        text = path.read_text(encoding="utf-8")
        found = tomllib.loads(text)
    except FileNotFoundError:
        if named:
            raise InvalidRequest(f"{FILE_VARIABLE}: there is no file {path}") from None
        return ClientFile()
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path} is not TOML: {explain_toml(error)}") from error
    settings = _settings_of(found, path)
    if settings.token and path.stat().st_mode & _OTHERS:
        _warn_of_readers(path)
    return settings


def _usual_path() -> Path:
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    # Expanded here, not by `Path`: without a home it stays as it is, and is not there.
    return Path(os.path.expanduser(folder)) / "quiver" / "client.toml"  # noqa: PTH111


def _settings_of(found: Mapping[str, Any], path: Path) -> ClientFile:
    known = [field.name for field in fields(ClientFile)]
    for name in found:
        if name not in known:
            near = get_close_matches(name.replace("-", "_"), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it may have {', '.join(known)}"
            raise InvalidRequest(f"{path}: {name} is not a setting of clients: {hint}")
    servers, timeout = found.get("servers"), found.get("timeout")
    if isinstance(servers, list) and all(isinstance(each, str) for each in servers):
        servers = ",".join(servers)
    tls_ca = _text("tls_ca", found.get("tls_ca"), path)
    return ClientFile(
        _text("servers", servers, path),
        _text("token", found.get("token"), path),
        tls_ca if tls_ca in {None, _SYSTEM} else str(path.parent / Path(tls_ca or "").expanduser()),
        None if timeout is None else _seconds(timeout, path),
        _text("zone", found.get("zone"), path),
    )


def _text(name: str, value: Any, path: Path) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidRequest(f"{path}: {name} is text in quotes, not {value!r}")
    return value or None


def _seconds(timeout: Any, path: Path) -> float:
    try:
        seconds = parse_duration(str(timeout))
    except ValueError as error:
        raise InvalidRequest(f"{path}: timeout: {error}") from error
    if seconds <= 0:
        raise InvalidRequest(f"{path}: timeout must be more than 0: {timeout!r}")
    return seconds


@lru_cache(maxsize=8)
def _warn_of_readers(path: Path) -> None:
    """Once a process."""
    logger.warning("%s holds a token, and others may read it: chmod 600 %s", path, path)
