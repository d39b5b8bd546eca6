"""`quiver dlq`: dead letters, which failed too often or were rejected."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from quivermq.cli.letter_table import died, print_letters
from quivermq.cli.message_lines import plain_content
from quivermq.cli.errors import UsageError
from quivermq.cli.options import (
    DEFAULT_SERVERS,
    DEFAULT_TIMEOUT_SECONDS,
    AsJson,
    Servers,
    Timeout,
    Yes,
    connect,
)
from quivermq.cli.output import (
    count,
    known,
    print_json,
    print_line,
    remark,
    remarks,
    shown,
)

if TYPE_CHECKING:
    from quivermq.client import Client, DeadLetter

app = typer.Typer(add_completion=False, no_args_is_help=True)

_LIMIT: Final = 100
_ALL: Final = 1_000_000
_AT_ONCE: Final = 1_000

Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic whose messages failed, not its .dlq.")
]
Offsets = Annotated[
    list[str] | None,
    typer.Option(
        "--offset",
        metavar="PARTITION/OFFSET",
        help="This letter, as `list` names it; may be repeated. An offset alone is of partition 0.",
    ),
]
OfGroup = Annotated[
    str | None, typer.Option("--group", metavar="GROUP", help="Only letters of this group.")
]
All = Annotated[bool, typer.Option("--all", help="All of them.")]


@app.command("list")
def list_(
    topic: Topic,
    group: OfGroup = None,
    max_: Annotated[
        int, typer.Option("--max", min=1, metavar="N", help="Show at most so many.")
    ] = _LIMIT,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """List dead letters, the oldest first: which group failed, why, and how often."""
    with connect(servers, timeout) as client:
        letters = _letters(client, topic, group, max_ + 1)
    if as_json:
        print_json([plain(letter) for letter in letters[:max_]])
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
    topic: Topic,
    place: Annotated[
        str, typer.Argument(metavar="PARTITION/OFFSET", help="The letter, as `list` names it.")
    ],
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show all of one dead letter."""
    with connect(servers, timeout) as client:
        (letter,) = _chosen(_letters(client, topic, None, _ALL), [place], topic)
    if as_json:
        print_json(plain(letter))
        return
    partition, offset = letter.original_partition, letter.original_offset
    place = f"partition {known(partition, 'd')} offset {known(offset, 'd')}"
    rows = {
        "letter": f"{letter.partition}/{letter.offset}",
        "from": f"{letter.topic} {place}",
        "died": died(letter, "%Y-%m-%d %H:%M:%S"),
        "group": letter.group,
        "reason": shown(letter.reason.encode()),
        "deliveries": known(letter.deliveries, "d"),
    }
    if letter.key is not None:
        rows["key"] = shown(letter.key)
    headers = {f"header {name}": shown(value) for name, value in letter.headers.items()}
    rows |= headers
    width = max(map(len, rows))
    for name, value in rows.items():
        print_line(f"{shown(name.encode()):<{width}}  {value}")
    print_line("")
    print_line(shown(letter.value))


@app.command()
def redrive(
    topic: Topic,
    offset: Offsets = None,
    group: OfGroup = None,
    all_: All = False,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Put dead letters back to where they came from, for every group there."""
    _check_choice(offset, group, all_=all_)
    with connect(servers, timeout) as client:
        letters = _wanted(client, topic, offset, group)
        done = 0
        with remarks().status("putting them back") as status:
            for first in range(0, len(letters), _AT_ONCE):
                done += client.redrive(topic, letters[first : first + _AT_ONCE])
                status.update(f"{done:,} of {len(letters):,} are on their way back")
    if as_json:
        print_json({"topic": topic, "redriven": done})
    else:
        print_line(f"{count(done, 'dead letter')} put back to {topic}")


@app.command()
def purge(
    topic: Topic,
    offset: Offsets = None,
    group: OfGroup = None,
    all_: All = False,
    yes: Yes = False,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Drop dead letters: they can be neither listed nor put back any more."""
    _check_choice(offset, group, all_=all_)
    with connect(servers, timeout) as client:
        letters = _wanted(client, topic, offset, group)
        question = f"Drop {count(len(letters), 'dead letter')} of {topic} for good?"
        if letters and not yes and not typer.confirm(question, err=True):
            remark("they were left as they are")
            raise typer.Exit(1)
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
        raise UsageError("--offset names letters one by one: leave out --group and --all")


def _wanted(
    client: "Client", topic: str, offsets: list[str] | None, group: str | None
) -> list["DeadLetter"]:
    letters = _letters(client, topic, group, _ALL)
    return _chosen(letters, offsets, topic) if offsets else letters


def _letters(client: "Client", topic: str, group: str | None, most: int) -> list["DeadLetter"]:
    found = client.dead_letters(topic, limit=most if group is None else _ALL)
    return [letter for letter in found if group in {None, letter.group}][:most]


def _chosen(letters: list["DeadLetter"], names: list[str], topic: str) -> list["DeadLetter"]:
    known = {(letter.partition, letter.offset): letter for letter in letters}
    places = [_place(name) for name in names]
    for name, found in zip(names, places, strict=True):
        if found not in known:
            raise UsageError(
                f"{topic} has no dead letter {name}: quiver dlq list {topic} names them"
            )
    return [known[found] for found in dict.fromkeys(places)]


def _place(text: str) -> tuple[int, int]:
    partition, _, offset = text.rpartition("/")
    if not (offset.isdecimal() and (partition or "0").isdecimal()):
        raise UsageError(f"{text!r} names no letter: write PARTITION/OFFSET, as `list` does")
    return int(partition or "0"), int(offset)


def plain(letter: "DeadLetter") -> dict[str, Any]:
    """For machines."""
    content = plain_content(letter.key, letter.value, letter.headers)
    return {**letter._asdict(), **content}
