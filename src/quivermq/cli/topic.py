"""`quiver topic`: create, list, describe, alter and delete topics."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
    numbers,
    print_json,
    print_line,
    print_table,
    remark,
    table,
)
from quivermq.cli.quantities import format_size
from quivermq.cli.topic_settings import (
    Archived,
    Burst,
    DeadLetter,
    DeleteAcked,
    GroupIdle,
    MaxAge,
    MaxBytes,
    MaxDeliveries,
    MaxMessages,
    Rate,
    RetryBase,
    RetryFirst,
    RetryLongest,
    changed_group_idle,
    changed_rate_limit,
    changed_retention,
    changed_retry,
    delivery_lines,
    holding_lines,
    kept,
)
from quivermq.cli.troubles import brokers_down, partition_troubles
from quivermq.errors import QuiverError

if TYPE_CHECKING:
    from quivermq.client import Client, PartitionInfo, TopicInfo

app = typer.Typer(add_completion=False, no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]


@app.command()
def create(
    name: Name,
    partitions: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many partitions.")
    ] = None,
    replication: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many brokers hold each partition.")
    ] = None,
    max_age: MaxAge = None,
    max_bytes: MaxBytes = None,
    max_messages: MaxMessages = None,
    keep_until_archived: Archived = None,
    delete_acked: DeleteAcked = None,
    rate_limit: Rate = None,
    burst: Burst = None,
    max_deliveries: MaxDeliveries = None,
    dead_letter: DeadLetter = None,
    retry_first: RetryFirst = None,
    retry_base: RetryBase = None,
    retry_longest: RetryLongest = None,
    group_idle_retention: GroupIdle = None,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Create a topic; if it is there with the same settings, all is well too."""
    limit = changed_rate_limit(None, rate_limit, burst)
    named = {} if max_deliveries is None else {"max_deliveries": max_deliveries}
    with connect(servers, timeout) as client:
        found = client.create_topic(
            name,
            partitions=partitions,
            replication=replication,
            retention=changed_retention(
                None, max_age, max_bytes, max_messages, keep_until_archived, delete_acked
            ),
            rate_limit=limit,
            dead_letter=dead_letter,
            retry=changed_retry(None, retry_first, retry_base, retry_longest),
            **named,
            **changed_group_idle(group_idle_retention),
        )
    if as_json:
        print_json(_plain(found))
        return
    print_line(f"topic {_summary(found)}")
    remark(f"try: quiver produce {name} hello")


@app.command("list")
def list_(
    show_all: Annotated[
        bool, typer.Option("--all", help="Also topics that tools keep for themselves: _name.")
    ] = False,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """List topics."""
    with connect(servers, timeout) as client:
        topics = [each for each in client.topics() if show_all or not each.name.startswith("_")]
        down = brokers_down(client.cluster())
    if as_json:
        print_json([_plain(topic) for topic in topics])
        return
    if not topics:
        remark("no topics; try: quiver topic create orders")
        return
    made = table("topic", "partitions>", "replicas>", "messages>", "size>", "kept", "state")
    for topic in topics:
        made.add_row(
            topic.name,
            str(len(topic.partitions)),
            str(topic.replication),
            known(topic.message_count),
            format_size(topic.size_bytes),
            kept(topic.retention),
            _state(topic, down),
        )
    print_table(made)


@app.command()
def describe(
    name: Name,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show a topic's settings, and each partition: who leads, what is kept."""
    with connect(servers, timeout) as client:
        topic = client.topic(name)
        down = brokers_down(client.cluster())
        holding = [] if as_json else _holding_lines(client, topic)
    if as_json:
        print_json(_plain(topic))
        return
    print_line(_summary(topic), "bold")
    made = table("partition>", "leader>", "replicas", "in sync", "offsets", "messages>", "size>")
    for partition in topic.partitions:
        made.add_row(
            str(partition.partition),
            str(partition.leader or "none"),
            numbers(partition.replicas) + _moving(partition),
            "?" if partition.in_sync is None else numbers(sorted(set(partition.in_sync) - down)),
            _offsets(partition),
            known(partition.message_count),
            format_size(partition.size_bytes),
            style="" if not partition_troubles(partition, down) else "yellow",
        )
    print_table(made)
    for line in [*delivery_lines(topic), *holding]:
        print_line(line)
    for partition in topic.partitions:
        for trouble in partition_troubles(partition, down):
            print_line(f"partition {partition.partition}: {trouble}", "yellow")


@app.command()
def alter(
    name: Name,
    partitions: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="How many partitions: never fewer than there are."),
    ] = None,
    max_age: MaxAge = None,
    max_bytes: MaxBytes = None,
    max_messages: MaxMessages = None,
    keep_until_archived: Archived = None,
    delete_acked: DeleteAcked = None,
    rate_limit: Rate = None,
    burst: Burst = None,
    max_deliveries: MaxDeliveries = None,
    dead_letter: DeadLetter = None,
    retry_first: RetryFirst = None,
    retry_base: RetryBase = None,
    retry_longest: RetryLongest = None,
    group_idle_retention: GroupIdle = None,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Change a topic; what is not named stays as it is."""
    limits = (max_age, max_bytes, max_messages, keep_until_archived, delete_acked)
    rate = (rate_limit, burst)
    waits = (retry_first, retry_base, retry_longest)
    named = (partitions, max_deliveries, dead_letter, group_idle_retention)
    if all(value is None for value in (*named, *limits, *rate, *waits)):
        raise UsageError(
            "say what to change: --partitions, --max-age ...; --help names all that can be"
        )
    plain: dict[str, Any] = {"max_deliveries": max_deliveries, "dead_letter": dead_letter}
    with connect(servers, timeout) as client:
        before = client.topic(name)
        found = client.alter_topic(
            name,
            partitions=partitions,
            retention=changed_retention(before.retention, *limits),
            rate_limit=changed_rate_limit(before.rate_limit, *rate),
            retry=changed_retry(before.retry, *waits),
            **{option: value for option, value in plain.items() if value is not None},
            **changed_group_idle(group_idle_retention),
        )
    if as_json:
        print_json(_plain(found))
    else:
        print_line(f"topic {_summary(found)}")


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Topics to delete.")],
    yes: Yes = False,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Delete topics and all of their messages, for good."""
    with connect(servers, timeout) as client:
        for name in names:
            topic = client.topic(name)
            question = f"Delete {name} and its {count(topic.message_count, 'message')} for good?"
            if not yes and not typer.confirm(question, err=True):
                remark(f"{name} was left as it is")
                raise typer.Exit(1)
            client.delete_topic(name)
            if not as_json:
                print_line(f"topic {name} is deleted")
    if as_json:
        print_json({"deleted": names})


def _holding_lines(client: "Client", topic: "TopicInfo") -> list[str]:
    retention = topic.retention
    if not (retention.keep_until_archived or retention.delete_acked):
        return []
    try:
        return holding_lines(retention, client.groups(topic.name))
    except QuiverError as error:
        return [f"what keeps its messages is not known: {error}"]


def _summary(topic: "TopicInfo") -> str:
    partitions = count(len(topic.partitions), "partition")
    replicas = count(topic.replication, "replica")
    duration = f"kept {kept(topic.retention)}"
    if topic.message_count == 0:
        return f"{topic.name}: {partitions} with {replicas} each, empty, {duration}"
    messages = f"{count(topic.message_count, 'message')}, {format_size(topic.size_bytes)}"
    return f"{topic.name}: {partitions} with {replicas} each, {messages}, {duration}"


def _state(topic: "TopicInfo", down: frozenset[int]) -> str:
    bad = sum(bool(partition_troubles(partition, down)) for partition in topic.partitions)
    return f"[yellow]{count(bad, 'partition')} in trouble[/]" if bad else "[green]well[/]"


def _moving(partition: "PartitionInfo") -> str:
    if not partition.target or set(partition.target) == set(partition.replicas):
        return ""
    return f" → {numbers(partition.target)}"


def _offsets(partition: "PartitionInfo") -> str:
    if partition.start_offset is None or partition.end_offset is None:
        return "?"
    if partition.start_offset == partition.end_offset:
        return f"none, next {partition.end_offset:,}"
    return f"{partition.start_offset:,} to {partition.end_offset - 1:,}"


def _plain(topic: "TopicInfo") -> dict[str, Any]:
    return asdict(topic)
