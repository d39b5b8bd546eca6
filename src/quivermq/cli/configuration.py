"""Where a broker's settings come from: flag, environment, TOML file, default, in this order.

One model, `BrokerSettings`, names them all; so a setting exists in every source or in none. The
sources are asked one by one rather than merged behind our back, so that each value can say where it
came from, and an error can name the place to mend.
"""

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from quivermq.cli.errors import UsageError
from quivermq.settings import BrokerSettings

PREFIX: Final = "QUIVER_"
DEFAULT_FILE: Final = "quiver.toml"
DEFAULT: Final = "default"
# Variables with our prefix that other commands read.
_OTHER_VARIABLES: Final = {"QUIVER_SERVERS", "QUIVER_CONFIG", "QUIVER_DEBUG"}


class _SourcedSettings(BrokerSettings, BaseSettings):
    """The model where the library's sources look for it. Never instantiated: it would merge."""

    # Text is taken as it is: the model parses `2=host:port,3=host:port`; JSON is not wanted.
    model_config = SettingsConfigDict(env_prefix=PREFIX, enable_decoding=False)


@dataclass(frozen=True, slots=True)
class Configuration:
    """The effective settings, and by name where each came from."""

    settings: BrokerSettings
    origins: dict[str, str]
    file: Path | None
    """The TOML file that was read, if any."""


def load(flags: Mapping[str, Any], file: Path | None = None) -> Configuration:
    """The settings, of flags (only those given), environment and file; `UsageError` if any is wrong.

    Without `file`, `quiver.toml` in the working directory is read if it is there.
    """
    if file is None and Path(DEFAULT_FILE).is_file():
        file = Path(DEFAULT_FILE)
    sources = [
        ({name: _flag(name) for name in flags}, flags),
        _from_environment(),
        _from_file(file),
    ]
    values: dict[str, Any] = {}
    origins = dict.fromkeys(BrokerSettings.model_fields, DEFAULT)
    for names, found in reversed(sources):
        values.update(found)
        origins.update(names)
    try:
        return Configuration(BrokerSettings.model_validate(values), origins, file)
    except ValidationError as error:
        raise UsageError(_explain(error, origins)) from None


def strange_variables() -> list[str]:
    """Warnings for environment variables that look like settings and are none."""
    known = {_variable(name) for name in BrokerSettings.model_fields}
    return [
        f"{name} is no setting{_or_did_you_mean(name, known)}"
        for name in sorted(map(str.upper, os.environ))
        if name.startswith(PREFIX) and name not in known | _OTHER_VARIABLES
    ]


def _from_environment() -> tuple[dict[str, str], dict[str, Any]]:
    found = EnvSettingsSource(_SourcedSettings)()
    return {name: _variable(name) for name in found}, found


def _from_file(file: Path | None) -> tuple[dict[str, str], dict[str, Any]]:
    if file is None:
        return {}, {}
    if not file.is_file():
        raise UsageError(f"there is no file {file}: name a TOML file with --config")
    try:
        found = TomlConfigSettingsSource(_SourcedSettings, file)()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is not TOML: {error}") from None
    for name in found:
        if name not in BrokerSettings.model_fields:
            hint = _or_did_you_mean(name, BrokerSettings.model_fields)
            raise UsageError(f"{file}: {name} is no setting{hint}")
    return dict.fromkeys(found, str(file)), found


def _explain(error: ValidationError, origins: Mapping[str, str]) -> str:
    """The first thing that is wrong, as one line that begins with the place to mend."""
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    name, *rest = first["loc"] or ("",)
    if not name:
        return message
    origin = origins[str(name)]
    where = f"{origin}: {name}" if origin.endswith(".toml") else origin
    where += "".join(f" {part}" for part in rest if part != "[key]")
    shown = "" if first["type"] == "value_error" else f", not {first['input']!r}"
    return f"{where}: {message}{shown}"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _variable(name: str) -> str:
    return PREFIX + name.upper()


def _or_did_you_mean(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name.replace("-", "_"), list(known), n=1)
    return f": did you mean {near[0]}?" if near else ""
