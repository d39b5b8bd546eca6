"""Reads a broker's settings from flags, environment, TOML file and defaults, in this order.

One model, `BrokerSettings`, names all settings, so each exists in every source. The sources are
read one by one instead of merged by the library: so each value can name its source, and an error
can name the place to fix.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import typer
from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from quivermq.cli.errors import UsageError
from quivermq.settings import BrokerSettings
from quivermq.validation import explain, explain_toml

PREFIX: Final = "QUIVER_"
DEFAULT_FILE: Final = "quiver.toml"
DEFAULT: Final = "default"
# Variables with our prefix that other commands read.
_OTHER_VARIABLES: Final = {
    "QUIVER_SERVERS", "QUIVER_TOKEN", "QUIVER_CONFIG", "QUIVER_CLIENT_CONFIG", "QUIVER_DEBUG",
}  # fmt: skip


class _SourcedSettings(BrokerSettings, BaseSettings):
    """The model where the library's sources look for it. Never instantiated: it would merge."""

    # Text is taken as it is: the model parses `2=host:port,3=host:port`, not JSON.
    model_config = SettingsConfigDict(env_prefix=PREFIX, enable_decoding=False)


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The effective settings, and the source of each by name."""

    settings: BrokerSettings
    sources: dict[str, str]
    file: Path | None
    """The TOML file that was read, if any."""


def load(flags: Mapping[str, Any], file: Path | None = None) -> LoadedSettings:
    """Load the settings; `flags` holds those given. Raises `UsageError` if any is wrong.

    Without `file`, it reads `quiver.toml` in the working directory, if there is one.
    """
    if file is None and Path(DEFAULT_FILE).is_file():
        file = Path(DEFAULT_FILE)
    given = {name: each.value if isinstance(each, Enum) else each for name, each in flags.items()}
    found = [
        ({name: _flag(name) for name in given}, given),
        _read_environment(),
        _read_file(file),
    ]
    values: dict[str, Any] = {}
    sources = dict.fromkeys(BrokerSettings.model_fields, DEFAULT)
    for named, read in reversed(found):
        values.update(read)
        sources.update(named)
    try:
        return LoadedSettings(BrokerSettings.model_validate(values), sources, file)
    except ValidationError as error:
        raise UsageError(_explain(error, sources)) from None


def unknown_variables() -> list[str]:
    """Warnings about environment variables that look like settings but are none."""
    known = {_variable(name) for name in BrokerSettings.model_fields}
    return [
        f"{name} is not a setting{_suggest(name, known)}"
        for name in sorted(map(str.upper, os.environ))
        if name.startswith(PREFIX) and name not in known | _OTHER_VARIABLES
    ]


def setting_flags() -> dict[str, Any]:
    """A flag for each setting, as annotations for `with_options`."""
    return {
        name: Annotated[_flag_type(name, field) | None, _flag_option(name, field)]
        for name, field in BrokerSettings.model_fields.items()
    }


def _read_environment() -> tuple[dict[str, str], dict[str, Any]]:
    found = EnvSettingsSource(_SourcedSettings)()
    return {name: _variable(name) for name in found}, found


def _read_file(file: Path | None) -> tuple[dict[str, str], dict[str, Any]]:
    if file is None:
        return {}, {}
    if not file.is_file():
        raise UsageError(f"there is no file {file}: name a TOML file with --config")
    try:
        found = TomlConfigSettingsSource(_SourcedSettings, file)()
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is not TOML: {explain_toml(error)}") from None
    for name in found:
        if name not in BrokerSettings.model_fields:
            hint = _suggest(name, BrokerSettings.model_fields)
            raise UsageError(f"{file}: {name} is not a setting{hint}")
    return dict.fromkeys(found, str(file)), found


def _explain(error: ValidationError, sources: Mapping[str, str]) -> str:
    """The first error, as one line that begins with the place to fix."""
    first = error.errors()[0]
    name, *rest = first["loc"] or ("",)
    message = explain(first, show="secret" not in str(name))
    if not name:
        return message
    source = sources[str(name)]
    where = f"{source}: {name}" if source.endswith(".toml") else source
    where += "".join(f" {part}" for part in rest if part != "[key]")
    return f"{where}: {message}"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _variable(name: str) -> str:
    return PREFIX + name.upper()


def _suggest(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name.replace("-", "_"), list(known), n=1)
    return f": did you mean {near[0]}?" if near else ""


def _flag_type(name: str, field: FieldInfo) -> Any:
    """The type that typer parses; the model checks the rest."""
    if get_origin(field.annotation) is Literal:
        choices = {str(choice): choice for choice in get_args(field.annotation)}
        return Enum(name.title().replace("_", ""), choices)
    # A size or a duration may have a unit.
    is_plain = field.annotation is bool or (field.annotation is int and not _unit(name))
    return field.annotation if is_plain else str


def _flag_option(name: str, field: FieldInfo) -> Any:
    # The help names the setting's default: the flag's own default is "not given".
    default = field.get_default(call_default_factory=True)
    shown = ("yes" if default else "no") if isinstance(default, bool) else default
    text = "" if default in ("", {}, SecretStr("")) else f" [default: {shown}]"
    return typer.Option(
        help=f"{field.description}{text}", show_default=False, metavar=_metavar(name, field)
    )


def _unit(name: str) -> str:
    """The unit in the name of a setting; "": it is a number."""
    return next((unit for unit in ("ms", "bytes") if unit in name.split("_")), "")


def _metavar(name: str, field: FieldInfo) -> str | None:
    if field.annotation is bool or get_origin(field.annotation) is Literal:
        return None
    if field.annotation is int:
        return {"ms": "MS", "bytes": "SIZE"}.get(_unit(name), "N")
    if get_origin(field.annotation) is dict:
        return "ID=HOST:PORT,..."
    if name.startswith("tls_"):
        return "FILE"
    known = {"dir": "DIR", "secret": "SECRET", "file": "FILE", "zone": "NAME"}
    return known.get(name.rpartition("_")[2], "HOST:PORT")
