"""`quiver user`: adds, removes and lists users, and changes what they may do."""

import sys
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer
from rich.markup import escape

from quivermq.cli.options import (
    DEFAULT_SERVERS,
    DEFAULT_TIMEOUT_SECONDS,
    AsJson,
    Servers,
    Timeout,
    Yes,
    complete_topics,
    confirm,
    connect,
    duration_option,
)
from quivermq.cli.output import print_json, print_line, print_table, remark, table

if TYPE_CHECKING:
    from quivermq.client import GrantInfo

app = typer.Typer(add_completion=False, no_args_is_help=True)

Action = Literal["produce", "consume", "admin"]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")]
TopicPrefix = Annotated[
    str,
    typer.Option(
        "--topic",
        metavar="PREFIX",
        help="Only topics whose names begin so.",
        autocompletion=complete_topics,
    ),
]
GroupPrefix = Annotated[
    str, typer.Option("--group", metavar="PREFIX", help="Only groups whose names begin so.")
]
_ACTION: Final = "produce, consume, or admin, which includes both."


@app.command()
def add(
    name: Name,
    expires: Annotated[
        float | None, duration_option("The token's life, as in 30d; default: no end.", "--expires")
    ] = None,
    new_token: Annotated[
        bool, typer.Option("--new-token", help="The user exists: replace its token.")
    ] = False,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Add a user, and show its token, which nothing can show again.

    Until there is an admin, this works without a token on the machine of a broker.
    """
    with connect(servers, timeout) as client:
        token = client.users.add(name, expires=expires, new_token=new_token)
    if as_json:
        print_json({"name": name, "token": token})
        return
    print_line(token)
    remark(f"this is the token of {name}: it is shown only here")
    remark(f"try: quiver user grant {name} consume --topic orders")


@app.command()
def grant(
    name: Name,
    action: Annotated[Action, typer.Argument(metavar="ACTION", help=_ACTION)],
    topic: TopicPrefix = "",
    group: GroupPrefix = "",
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Allow a user an action: everywhere, or with topics and groups whose names begin so."""
    with connect(servers, timeout) as client:
        client.users.grant(name, action, topic=topic, group=group)
    if as_json:
        print_json({"name": name, "action": action, "topic": topic, "group": group})
    else:
        print_line(f"{name} may {_shown(action, topic, group)}")


@app.command()
def revoke(
    name: Name,
    action: Annotated[
        Action | None, typer.Argument(metavar="[ACTION]", help=f"{_ACTION} Without: everything.")
    ] = None,
    topic: TopicPrefix = "",
    group: GroupPrefix = "",
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Take a grant away, exactly as it was given. The user's connections end within seconds."""
    with connect(servers, timeout) as client:
        client.users.revoke(name, action, topic=topic, group=group)
    if as_json:
        print_json({"name": name, "revoked": action, "topic": topic, "group": group})
    else:
        what = _shown(action, topic, group) if action else "do anything"
        print_line(f"{name} may no longer {what}")


@app.command()
def remove(
    name: Name,
    yes: Yes = False,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Remove a user. Its connections end within seconds."""
    with connect(servers, timeout) as client:
        # A script that removes a user means it; a person may have mistyped.
        question = f"Remove user {name}, whose programs can no longer connect?"
        confirm(question, yes=yes or not sys.stdin.isatty())
        client.users.remove(name)
    if as_json:
        print_json({"removed": name})
    else:
        print_line(f"user {name} is removed")


@app.command("list")
def list_(
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """List users and what they may do."""
    with connect(servers, timeout) as client:
        users = client.users.all()
    if as_json:
        print_json([asdict(user) for user in users])
        return
    if not users:
        remark("no users; try: quiver user add NAME")
        return
    made = table("user", "may", "token ends")
    for user in users:
        grants = "\n".join(_grant_shown(each) for each in user.grants) or "nothing"
        made.add_row(user.name, escape(grants), _ending(user.expires_ms))
    print_table(made)


def _ending(expires_ms: int | None) -> str:
    if expires_ms is None:
        return "never"
    moment = datetime.fromtimestamp(expires_ms / 1000).astimezone()
    return moment.isoformat(" ", "minutes")


def _grant_shown(grant: "GrantInfo") -> str:
    return _shown(grant.action, grant.topic, grant.group)


def _shown(action: str, topic: str, group: str) -> str:
    topics = f" topics {topic}*" if topic else ""
    groups = f" as groups {group}*" if group else ""
    return f"{action}{topics}{groups}"
