"""Options that every command which talks to a cluster takes, and the client made of them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from quivermq.cli.quantities import parse_duration, parse_size

if TYPE_CHECKING:
    from quivermq.client import Client

DEFAULT_SERVERS: Final = "127.0.0.1:7600"
DEFAULT_TIMEOUT_SECONDS: Final = 10.0


def _quantity(parse: Callable[[str], float]) -> Callable[[str], float]:
    """A parser whose complaint reaches the user whole; typer would show the value alone."""

    def parsed(text: str) -> float:
        try:
            return parse(str(text))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parsed


duration = _quantity(parse_duration)
size = _quantity(parse_size)

Servers = Annotated[
    str,
    typer.Option(
        "--servers",
        envvar="QUIVER_SERVERS",
        metavar="HOST:PORT,...",
        help="Brokers to connect to; one is enough, more are tried in turn.",
        rich_help_panel="Connection",
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="DURATION",
        parser=duration,
        help="How long to try before giving up.",
        rich_help_panel="Connection",
        show_default="10s",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text and tables.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def connect(servers: str, timeout: float) -> "Client":
    """A client; imported only when there is work, since its libraries take time to load."""
    import quivermq  # noqa: PLC0415  (see above)

    return quivermq.connect(servers, timeout=timeout)
