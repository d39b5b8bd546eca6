"""Options that several commands take, each declared once; and the client that they make."""

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from quivermq.cli.errors import UsageError
from quivermq.cli.output import remark
from quivermq.client_file import ClientFile, read_client_file
from quivermq.errors import InvalidRequest, QuiverError
from quivermq.quantities import parse_duration, parse_size

if TYPE_CHECKING:
    from quivermq.client import Client
    from quivermq.tls import ClientTls

DEFAULT_SERVERS: Final = "127.0.0.1:7600"
DEFAULT_TIMEOUT_SECONDS: Final = 10.0
DEFAULT_ROWS: Final = 100
_CONNECTION: Final = "Connection"
# A user who presses Tab does not wait for longer.
_COMPLETION_SECONDS: Final = 1.0
_COMPLETION_TOPICS: Final = 10
"""A user who has named no topic is offered the groups of so many."""
_NO_LIMIT: Final = {"none", "unlimited"}


def as_parser(parse: Callable[[str], Any], *, none: bool = False) -> Callable[[str], Any]:
    """A parser for typer that shows the message of a `ValueError`; typer alone would not.

    With `none`, it also takes the word `none`, and returns 0 for it.
    """

    def parse_option(text: str) -> Any:
        if none and text.lower() in _NO_LIMIT:
            return 0
        try:
            return parse(str(text))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parse_option


def duration_option(help_: str, *names: str, none: bool = False, **more: Any) -> Any:
    """An option whose value is a duration, in seconds."""
    parser = as_parser(parse_duration, none=none)
    return typer.Option(*names, metavar="DURATION", parser=parser, help=help_, **more)


def size_option(help_: str, *names: str, none: bool = False, **more: Any) -> Any:
    """An option whose value is a number of bytes."""
    parser = as_parser(parse_size, none=none)
    return typer.Option(*names, metavar="SIZE", parser=parser, help=help_, **more)


def number_option(help_: str, *names: str, least: int = 1, **more: Any) -> Any:
    """An option whose value is a whole number."""
    return typer.Option(*names, min=least, metavar="N", help=help_, **more)


def servers_option(help_: str, **more: Any) -> Any:
    """The option `--servers`."""
    return typer.Option(
        "--servers",
        envvar="QUIVER_SERVERS",
        metavar="HOST:PORT,...",
        help=help_,
        rich_help_panel=_CONNECTION,
        **more,
    )


def timeout_option(default: str) -> Any:
    """The option `--timeout`, with its default as the help shows it."""
    return duration_option(
        "How long to try before giving up.",
        "--timeout",
        rich_help_panel=_CONNECTION,
        show_default=default,
    )


def complete_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of topics for a shell's completion; those of the system if they are begun."""
    return _complete(
        ctx,
        lambda client: [
            name
            for name in client.topic_names()
            if name.startswith(incomplete) and (incomplete or not name.startswith("_"))
        ],
    )


def complete_groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of groups of the topics that are named already; of the first topics, if none is."""
    params = ctx.params
    named = params.get("topics") or [params.get("topic") or params.get("name")]
    topics = [each for each in named if each]

    def ask(client: "Client") -> list[str]:
        chosen = topics or [name for name in client.topic_names() if not name.startswith("_")]
        found = {
            group.name for topic in chosen[:_COMPLETION_TOPICS] for group in client.groups(topic)
        }
        return sorted(
            name
            for name in found
            if name.startswith(incomplete) and (incomplete or not name.startswith("_"))
        )

    return _complete(ctx, ask)


def _complete(ctx: typer.Context, ask: "Callable[[Client], list[str]]") -> list[str]:
    """Ask the brokers, briefly; without an answer there is nothing to complete."""
    from quivermq.client import ConnectOptions, open_client  # noqa: PLC0415  (see `connect`)

    given = ctx.params.get("servers")
    servers = given if given != DEFAULT_SERVERS else None
    try:
        options = ConnectOptions.of(servers, token=None, tls=None, timeout=_COMPLETION_SECONDS)
        with open_client(options) as client:
            return ask(client)
    except QuiverError:
        return []


Servers = Annotated[
    str, servers_option("Brokers to connect to; one is enough, more are tried in turn.")
]
Timeout = Annotated[float, timeout_option("10s")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text and tables.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Once = Annotated[
    bool,
    typer.Option("--once", help="Process all that is there, then end; otherwise run until Ctrl-C."),
]
Topic = Annotated[
    str,
    typer.Argument(metavar="TOPIC", help="The topic's name.", autocompletion=complete_topics),
]
Group = Annotated[
    str,
    typer.Argument(metavar="GROUP", help="The group's name.", autocompletion=complete_groups),
]
Partition = Annotated[int | None, number_option("Only this partition.", "--partition", least=0)]
MaxRows = Annotated[int, number_option("Show at most so many.", "--max")]


def add_connection_options(command: Any) -> None:
    """Give a command that connects, and those below it, the options `--token` and `--tls-ca`.

    Their values go into the environment, where every client of the process looks for them, and of
    every process that it starts: Spark's workers too.
    """
    _add_connection_options(command, None)


def _add_connection_options(command: Any, file: ClientFile | None) -> None:
    connects = any(parameter.name in {"servers", "timeout"} for parameter in command.params)
    if connects or getattr(command, "commands", {}):
        file = file or _client_file()
    for each in getattr(command, "commands", {}).values():
        _add_connection_options(each, file)
    if connects and file is not None:
        for parameter in command.params:
            _default_to_file(parameter, file)
        command.params.extend(_connection_options())


def _client_file() -> ClientFile:
    try:
        return read_client_file()
    except InvalidRequest as error:
        raise UsageError(str(error)) from None


def _default_to_file(parameter: Any, file: ClientFile) -> None:
    """The file has the defaults. Its token and CA every client of the process finds."""
    if parameter.name == "servers" and parameter.default == DEFAULT_SERVERS and file.servers:
        parameter.default = file.servers
    if parameter.name == "timeout" and parameter.default == DEFAULT_TIMEOUT_SECONDS:
        parameter.default = file.timeout or DEFAULT_TIMEOUT_SECONDS


def _connection_options() -> list[Any]:
    """The parameters that typer makes of their declaration."""
    declaring = typer.Typer(add_completion=False)

    @declaring.command()
    def command(
        token: Annotated[
            str | None,
            typer.Option(
                "--token",
                expose_value=False,
                callback=_keep_token,
                envvar="QUIVER_TOKEN",
                metavar="TOKEN",
                help="Your token, for brokers with users. Others see flags: set the variable.",
                rich_help_panel=_CONNECTION,
            ),
        ] = None,
        tls_ca: Annotated[
            str | None,
            typer.Option(
                "--tls-ca",
                expose_value=False,
                callback=_keep_tls_ca,
                envvar="QUIVER_TLS_CA",
                metavar="FILE",
                help="For brokers with TLS: their CA's certificate, or the word system.",
                rich_help_panel=_CONNECTION,
            ),
        ] = None,
    ) -> None: ...

    return [
        parameter
        for parameter in typer.main.get_command(declaring).params
        if parameter.name in {"token", "tls_ca"}
    ]


def _keep_token(value: str | None) -> None:
    if value is not None:
        os.environ["QUIVER_TOKEN"] = value


def _keep_tls_ca(value: str | None) -> None:
    if value is not None:
        os.environ["QUIVER_TLS_CA"] = value


def connect(
    servers: str, timeout: float, *, tls: "ClientTls" = None, token: str | None = None
) -> "Client":
    """A client; imported only when it is needed, since its libraries take time to load."""
    from quivermq.client import (  # noqa: PLC0415  (see above)
        ConnectOptions,
        open_client,
        parse_servers,
    )

    try:
        parse_servers(servers)
    except InvalidRequest as error:
        raise UsageError(f"--servers: {error}") from None
    return open_client(ConnectOptions.of(servers, token=token, tls=tls, timeout=timeout))


def confirm(question: str, *, yes: bool, otherwise: str = "nothing was changed") -> None:
    """Ask, unless `--yes` was given. If the answer is no, the command ends with exit code 1."""
    if not yes and not _ask(question):
        remark(otherwise)
        raise typer.Exit(1)


def _ask(question: str) -> bool:
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        remark("")
        raise UsageError("there is no terminal to ask at: give --yes if that is wanted") from None


def parse_position(
    text: str | None, option: str, *, names: tuple[str, ...] = ("earliest", "latest")
) -> Any:
    """A position in a topic: one of `names`, an offset (int) or a time; None stays None."""
    if text is None or text in names:
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return parse_moment(text, datetime.now().astimezone())
    except ValueError as error:
        others = ", ".join(names)
        known = f"{others} or an offset" if names else "an offset"
        raise UsageError(f"{option}: {error}; or {known}") from None


def parse_place(text: str) -> tuple[int | None, int]:
    """PARTITION/OFFSET, or an offset alone."""
    partition, slash, offset = text.rpartition("/")
    if not (offset.isdecimal() and offset.isascii()) or (slash and not partition.isdecimal()):
        raise UsageError(f"{text!r} is not a message: write PARTITION/OFFSET, as in `list`")
    return (int(partition) if slash else None), int(offset)


def parse_moment(text: str, now: datetime) -> datetime:
    """A date or time, local without a zone; or a duration, counted back from `now`."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        pass
    else:
        return moment.astimezone()
    try:
        return datetime.fromtimestamp(now.timestamp() - parse_duration(text)).astimezone()
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            f"{text!r} is not a time: write 2025-01-31, 2025-01-31T12:00, 2025-01-31T12:00Z, "
            "or 2h for two hours ago"
        ) from None


def with_options(options: Mapping[str, Any]) -> Callable[[Callable[..., None]], Any]:
    """Give a command, in place of its `**given`, these options: annotations by name.

    They stand before the command's keyword-only parameters. One that is not on the command line is
    not passed.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        *own, _ = inspect.signature(command, eval_str=True).parameters.values()
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
            for name, kind in options.items()
        ]
        first = [each for each in own if each.kind is not inspect.Parameter.KEYWORD_ONLY]
        parameters = [*first, *added, *(each for each in own if each not in first)]

        def run(**values: Any) -> None:
            command(
                **{
                    name: value
                    for name, value in values.items()
                    if name not in options or value is not None
                }
            )

        run.__doc__ = command.__doc__
        run.__name__ = command.__name__
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        # typer reads a command's parameters from its signature.
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorate
