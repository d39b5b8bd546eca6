"""`quiver dlq`: lists, shows, redrives and purges dead letters."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from quivermq.cli.errors import UsageError
from quivermq.cli.letter_table import format_died, print_letters
from quivermq.cli.message_lines import content_dict
from quivermq.cli.options import (
    DEFAULT_ROWS,
    DEFAULT_SERVERS,
    DEFAULT_TIMEOUT_SECONDS,
    AsJson,
    MaxRows,
    Servers,
    Timeout,
    Yes,
    complete_groups,
    complete_topics,
    confirm,
    connect,
    duration_option,
    parse_moment,
    parse_place,
)
from quivermq.cli.output import (
    count,
    format_number,
    print_json,
    print_line,
    printable,
    remark,
    show_status,
)
from quivermq.moments import format_written

if TYPE_CHECKING:
    from quivermq.client import DeadLetter

app = typer.Typer(add_completion=False, no_args_is_help=True)

_ALL: Final = 1_000_000
_AT_ONCE: Final = 1_000

SourceTopic = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC",
        help="The topic whose messages failed, not its .dlq.",
        autocompletion=complete_topics,
    ),
]
Offsets = Annotated[
    list[str] | None,
    typer.Option(
        "--offset",
        metavar="PARTITION/OFFSET",
        help="This letter, as in `list`; may be repeated; an offset alone in one partition.",
    ),
]
OfGroup = Annotated[
    str | None,
    typer.Option(
        "--group",
        metavar="GROUP",
        help="Only letters of the group that failed.",
        autocompletion=complete_groups,
    ),
]
WithReason = Annotated[
    str | None,
    typer.Option("--reason", metavar="TEXT", help="Only letters with this in their reason."),
]
WithKey = Annotated[
    str | None, typer.Option("--key", metavar="KEY", help="Only letters with this key.")
]
OlderThan = Annotated[
    float | None,
    duration_option("Only letters that died so long ago, or longer.", show_default=False),
]
Since = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Only letters that died then, as 2h or a date, or later."),
]
Target = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="group|all|TOPIC",
        help="The group that failed, every group of the topic, or another topic.",
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(metavar="N", min=0.001, help="So many letters a second at most."),
]
All = Annotated[bool, typer.Option("--all", help="All letters.")]


@app.command("list")
def list_(
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPIC]",
            help="The topic whose messages failed; default: all.",
            autocompletion=complete_topics,
        ),
    ] = None,
    group: OfGroup = None,
    reason: WithReason = None,
    key: WithKey = None,
    older_than: OlderThan = None,
    since: Since = None,
    max_: MaxRows = DEFAULT_ROWS,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """List dead letters, oldest first: the group that failed, why, and how often."""
    wanted = _wanted(group, reason, key, older_than, since)
    with connect(servers, timeout) as client:
        letters = client.dead_letters(topic, max_ + 1, **wanted)
    if as_json:
        print_json([_as_dict(letter) for letter in letters[:max_]])
        return
    if not letters:
        chosen = " like that" if any(value is not None for value in wanted.values()) else ""
        remark(f"{topic or 'the cluster'} has no dead letters{chosen}")
        return
    print_letters(letters[:max_], with_topic=topic is None)
    if len(letters) > max_:
        remark(f"there are more: --max {max_ * 10} shows them")
    first = letters[0]
    remark(f"try: quiver dlq show {topic or first.topic} {first.partition}/{first.offset}")


@app.command()
def show(
    topic: SourceTopic,
    letter_id: Annotated[
        str, typer.Argument(metavar="PARTITION/OFFSET", help="The letter, as in `list`.")
    ],
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter in full."""
    with connect(servers, timeout) as client:
        (letter,) = _choose(client.dead_letters(topic, _ALL), [letter_id], topic)
    if as_json:
        print_json(_as_dict(letter))
        return
    partition, offset = letter.original_partition, letter.original_offset
    origin = f"partition {format_number(partition, 'd')} offset {format_number(offset, 'd')}"
    rows = {
        "letter": f"{letter.partition}/{letter.offset}",
        "from": f"{letter.topic} {origin}",
        "died": format_died(letter, "%Y-%m-%d %H:%M:%S"),
        "group": letter.group,
        "reason": printable(letter.reason.encode()),
        "deliveries": format_number(letter.deliveries, "d"),
    }
    if letter.key is not None:
        rows["key"] = printable(letter.key)
    headers = {f"header {name}": printable(value) for name, value in letter.headers.items()}
    rows |= headers
    width = max(map(len, rows))
    for name, value in rows.items():
        print_line(f"{printable(name.encode()):<{width}}  {value}")
    print_line("")
    print_line(printable(letter.value))


@app.command()
def redrive(
    topic: SourceTopic,
    offset: Offsets = None,
    group: OfGroup = None,
    reason: WithReason = None,
    key: WithKey = None,
    older_than: OlderThan = None,
    since: Since = None,
    all_: All = False,
    to: Target = "group",
    rate: Rate = None,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Let dead letters be delivered again, by default to the group that failed."""
    wanted = _wanted(group, reason, key, older_than, since)
    _check_choice(offset, wanted, all_=all_)
    with connect(servers, timeout) as client, show_status("redriving", quiet=as_json):
        if offset:
            letters = _choose(client.dead_letters(topic, _ALL), offset, topic)
            done = client.redrive(topic, letters, to=to, rate=rate)
        else:
            done = client.redrive(topic, to=to, rate=rate, **wanted)
    if as_json:
        print_json({"topic": topic, "to": to, "redriven": int(done), "stayed": done.stayed})
        return
    where = {
        "group": f"of {topic} given back to the group that failed",
        "all": f"put back into {topic}, for every group",
    }.get(to, f"of {topic} put into {to}")
    print_line(f"{count(int(done), 'dead letter')} {where}")
    if done.stayed:
        gone = f"{count(done.stayed, 'dead letter')} stayed: the original or the group is gone"
        remark(f"{gone}; --to all puts them into {topic} again", "yellow")


@app.command()
def purge(
    topic: SourceTopic,
    offset: Offsets = None,
    group: OfGroup = None,
    reason: WithReason = None,
    key: WithKey = None,
    older_than: OlderThan = None,
    since: Since = None,
    all_: All = False,
    yes: Yes = False,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Drop dead letters, for good."""
    wanted = _wanted(group, reason, key, older_than, since)
    _check_choice(offset, wanted, all_=all_)
    with connect(servers, timeout) as client:
        letters = client.dead_letters(topic, _ALL, **wanted)
        if offset:
            letters = _choose(letters, offset, topic)
        question = f"Drop {count(len(letters), 'dead letter')} of {topic} for good?"
        confirm(question, yes=yes or not letters)
        # These and no others: more may have come while the question was answered.
        done = sum(
            client.purge_dead_letters(topic, letters[first : first + _AT_ONCE])
            for first in range(0, len(letters), _AT_ONCE)
        )
    if as_json:
        print_json({"topic": topic, "purged": done})
    else:
        print_line(f"{count(done, 'dead letter')} of {topic} dropped")


def _wanted(
    group: str | None,
    reason: str | None,
    key: str | None,
    older_than: float | None,
    since: str | None,
) -> dict[str, Any]:
    """The filters of a command as the client takes them."""
    moment = None
    if since is not None:
        try:
            moment = parse_moment(since, datetime.now().astimezone())
        except ValueError as error:
            raise UsageError(f"--since: {error}") from None
    found = {"group": group, "reason": reason, "key": key, "older_than": older_than}
    return {**found, "since": moment}


def _check_choice(offset: list[str] | None, wanted: dict[str, Any], *, all_: bool) -> None:
    is_filtered = any(value is not None for value in wanted.values())
    if not offset and not is_filtered and not all_:
        raise UsageError(
            "say which: --offset PARTITION/OFFSET, --group, --reason, --key, --older-than, --since "
            "or --all"
        )
    if offset and (is_filtered or all_):
        raise UsageError("--offset names single letters: leave out --all and the other choices")


def _choose(letters: list["DeadLetter"], names: list[str], topic: str) -> list["DeadLetter"]:
    known = {(letter.partition, letter.offset): letter for letter in letters}
    wanted = [_place(name, letters) for name in names]
    for name, found in zip(names, wanted, strict=True):
        if found not in known:
            raise UsageError(f"{topic} has no dead letter {name}; see quiver dlq list {topic}")
    return [known[found] for found in dict.fromkeys(wanted)]


def _place(name: str, letters: list["DeadLetter"]) -> tuple[int, int]:
    partition, offset = parse_place(name)
    if partition is None and any(letter.partition for letter in letters):
        raise UsageError(f"there are letters in several partitions: write PARTITION/{offset}")
    return partition or 0, offset


def _as_dict(letter: "DeadLetter") -> dict[str, Any]:
    content = content_dict(letter)
    return {**letter._asdict(), "died": format_written(letter.died), **content}
