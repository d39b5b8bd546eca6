"""`quiver dlq`: lists, shows, redrives and purges dead letters."""

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
    confirm,
    connect,
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

if TYPE_CHECKING:
    from quivermq.client import Client, DeadLetter

app = typer.Typer(add_completion=False, no_args_is_help=True)

_ALL: Final = 1_000_000
_AT_ONCE: Final = 1_000

SourceTopic = Annotated[
    str,
    typer.Argument(metavar="TOPIC", help="The topic whose messages failed, not its .dlq."),
]
Offsets = Annotated[
    list[str] | None,
    typer.Option(
        "--offset",
        metavar="PARTITION/OFFSET",
        help="This letter, as in `list`; may be repeated. An offset alone is in partition 0.",
    ),
]
OfGroup = Annotated[
    str | None, typer.Option("--group", metavar="GROUP", help="Only letters of this group.")
]
All = Annotated[bool, typer.Option("--all", help="All letters.")]


@app.command("list")
def list_(
    topic: SourceTopic,
    group: OfGroup = None,
    max_: MaxRows = DEFAULT_ROWS,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """List dead letters, oldest first: the group that failed, why, and how often."""
    with connect(servers, timeout) as client:
        letters = _fetch(client, topic, group, max_ + 1)
    if as_json:
        print_json([_as_dict(letter) for letter in letters[:max_]])
        return
    if not letters:
        remark(f"{topic} has no dead letters")
        return
    print_letters(letters[:max_])
    if len(letters) > max_:
        remark(f"there are more: --max {max_ * 10} shows them")
    remark(f"try: quiver dlq show {topic} {letters[0].partition}/{letters[0].offset}")


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
        (letter,) = _choose(_fetch(client, topic, None, _ALL), [letter_id], topic)
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
    all_: All = False,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Put dead letters back into their topic, for every group."""
    _check_choice(offset, group, all_=all_)
    with connect(servers, timeout) as client:
        letters = _find(client, topic, offset, group)
        done = 0
        with show_status("redriving", quiet=as_json) as status:
            for first in range(0, len(letters), _AT_ONCE):
                done += client.redrive(topic, letters[first : first + _AT_ONCE])
                status.update(f"redriving: {done:,} of {len(letters):,}")
    if as_json:
        print_json({"topic": topic, "redriven": done})
    else:
        print_line(f"{count(done, 'dead letter')} put back into {topic}")


@app.command()
def purge(
    topic: SourceTopic,
    offset: Offsets = None,
    group: OfGroup = None,
    all_: All = False,
    yes: Yes = False,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Drop dead letters, for good."""
    _check_choice(offset, group, all_=all_)
    with connect(servers, timeout) as client:
        letters = _find(client, topic, offset, group)
        question = f"Drop {count(len(letters), 'dead letter')} of {topic} for good?"
        confirm(question, yes=yes or not letters)
        done = sum(
            client.purge_dead_letters(topic, letters[first : first + _AT_ONCE])
            for first in range(0, len(letters), _AT_ONCE)
        )
    if as_json:
        print_json({"topic": topic, "purged": done})
    else:
        print_line(f"{count(done, 'dead letter')} of {topic} dropped")


def _check_choice(offset: list[str] | None, group: str | None, *, all_: bool) -> None:
    if not offset and not group and not all_:
        raise UsageError("say which: --offset PARTITION/OFFSET, --group GROUP or --all")
    if offset and (group or all_):
        raise UsageError("--offset names single letters: leave out --group and --all")


def _find(
    client: "Client", topic: str, offsets: list[str] | None, group: str | None
) -> list["DeadLetter"]:
    letters = _fetch(client, topic, group, _ALL)
    return _choose(letters, offsets, topic) if offsets else letters


def _fetch(client: "Client", topic: str, group: str | None, most: int) -> list["DeadLetter"]:
    found = client.dead_letters(topic, limit=most if group is None else _ALL)
    return [letter for letter in found if group in {None, letter.group}][:most]


def _choose(letters: list["DeadLetter"], names: list[str], topic: str) -> list["DeadLetter"]:
    known = {(letter.partition, letter.offset): letter for letter in letters}
    wanted = [_parse_letter(name) for name in names]
    for name, found in zip(names, wanted, strict=True):
        if found not in known:
            raise UsageError(f"{topic} has no dead letter {name}; see quiver dlq list {topic}")
    return [known[found] for found in dict.fromkeys(wanted)]


def _parse_letter(text: str) -> tuple[int, int]:
    partition, _, offset = text.rpartition("/")
    if not (offset.isdecimal() and (partition or "0").isdecimal()):
        raise UsageError(f"{text!r} is not a letter: write PARTITION/OFFSET, as in `list`")
    return int(partition or "0"), int(offset)


def _as_dict(letter: "DeadLetter") -> dict[str, Any]:
    content = content_dict(letter.key, letter.value, letter.headers)
    return {**letter._asdict(), **content}
