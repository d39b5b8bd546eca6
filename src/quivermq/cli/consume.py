"""`quiver consume`: messages of a topic on standard output."""

import asyncio
from typing import Annotated

import typer

from quivermq.cli.consume_options import (
    PREFETCH,
    REASON,
    VISIBILITY_SECONDS,
    Ack,
    ChosenAck,
    ChosenMode,
    ChosenThen,
    Details,
    Follow,
    Group,
    Max,
    Mode,
    Partition,
    Prefetch,
    Reason,
    Start,
    Then,
    Visibility,
    beginning_of_group,
    check_shared_only,
    chosen_mode,
    place,
)
from quivermq.cli.message_lines import MessageLines
from quivermq.cli.options import (
    DEFAULT_SERVERS,
    DEFAULT_TIMEOUT_SECONDS,
    AsJson,
    Servers,
    Timeout,
)
from quivermq.cli.shared_consuming import SharedConsuming
from quivermq.cli.single_reading import SingleReading
from quivermq.cli.sticky_consuming import StickyConsuming

app = typer.Typer(add_completion=False)


@app.command()
def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to read.")],
    group: Group = None,
    mode: ChosenMode = None,
    start: Start = None,
    partition: Partition = None,
    max_: Max = None,
    follow: Follow = False,
    details: Details = None,
    ack: ChosenAck = Ack.MANUAL,
    then: ChosenThen = Then.ACK,
    reason: Reason = None,
    visibility: Visibility = VISIBILITY_SECONDS,
    prefetch: Prefetch = PREFETCH,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Print the messages of a topic, one a line.

    In a pipe a line is the value and nothing else; with --json it is an object
    with everything. Without --follow it ends when nothing is waiting.
    """
    chosen = chosen_mode(mode, group)
    check_shared_only(chosen, ack, then, reason)
    lines = MessageLines(as_json=as_json, details=details)
    consuming: SharedConsuming | StickyConsuming | SingleReading
    if group is None or chosen is Mode.SINGLE:
        consuming = SingleReading(
            lines, topic, partition, place(start), group, follow=follow, max_=max_ or 0
        )
    elif chosen is Mode.STICKY:
        begin = beginning_of_group(start, partition, chosen)
        consuming = StickyConsuming(lines, topic, group, begin, follow=follow, max_=max_ or 0)
    else:
        consuming = SharedConsuming(
            lines,
            topic,
            group,
            start=beginning_of_group(start, partition, chosen),
            follow=follow,
            max_=max_ or 0,
            auto_ack=ack is Ack.AUTO,
            then=then,
            reason=reason or REASON,
            visibility=visibility,
            prefetch=prefetch,
        )
    try:
        asyncio.run(consuming.run(servers, timeout))
    finally:
        lines.flush()
    if not as_json:
        consuming.remark_on_end()
