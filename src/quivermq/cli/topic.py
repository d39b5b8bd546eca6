"""`quiver topic`: creates, lists, describes, alters and deletes topics."""

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
    Topic,
    Yes,
    complete_topics,
    confirm,
    connect,
    number_option,
    with_options,
)
from quivermq.cli.output import (
    count,
    format_number,
    numbers,
    print_json,
    print_line,
    print_table,
    remark,
    table,
)
from quivermq.cli.topic_settings import (
    OPTIONS,
    changed_settings,
    delivery_lines,
    format_retention,
    retention_holders,
)
from quivermq.cluster_findings import brokers_down, partition_problems
from quivermq.errors import QuiverError
from quivermq.quantities import format_size

if TYPE_CHECKING:
    from quivermq.client import Client, PartitionInfo, TopicInfo

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.command()
@with_options(OPTIONS)
def create(
    name: Topic,
    partitions: Annotated[int | None, number_option("How many partitions.")] = None,
    replication: Annotated[
        int | None, number_option("How many brokers hold each partition.")
    ] = None,
    *,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
    **settings: Any,
) -> None:
    """Create a topic. A topic that exists with the same settings is no error."""
    wanted = changed_settings(settings)
    with connect(servers, timeout) as client:
        found = client.create_topic(name, partitions=partitions, replication=replication, **wanted)
    if as_json:
        print_json(asdict(found))
        return
    print_line(f"topic {_summary(found)}")
    remark(f"try: quiver produce {name} hello")


@app.command("list")
def list_(
    show_all: Annotated[
        bool, typer.Option("--all", help="Also internal topics, whose names begin with _.")
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
        print_json([asdict(topic) for topic in topics])
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
            format_number(topic.message_count),
            format_size(topic.size_bytes),
            format_retention(topic.retention),
            _state(topic, down),
        )
    print_table(made)


@app.command()
def describe(
    name: Topic,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show a topic's settings and partitions: leader, replicas, offsets, size."""
    with connect(servers, timeout) as client:
        topic = client.topic(name)
        down = brokers_down(client.cluster())
        holders = [] if as_json else _retention_holders(client, topic)
    if as_json:
        print_json(asdict(topic))
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
            format_number(partition.message_count),
            format_size(partition.size_bytes),
            style="" if not partition_problems(partition, down) else "yellow",
        )
    print_table(made)
    for line in [*delivery_lines(topic), *holders]:
        print_line(line)
    for partition in topic.partitions:
        for trouble in partition_problems(partition, down):
            print_line(f"partition {partition.partition}: {trouble}", "yellow")


@app.command()
@with_options(OPTIONS)
def alter(
    name: Topic,
    partitions: Annotated[
        int | None, number_option("How many partitions; never fewer than there are.")
    ] = None,
    *,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
    **settings: Any,
) -> None:
    """Change a topic's settings. Those that are not given stay as they are."""
    if partitions is None and not settings:
        raise UsageError("say what to change: --partitions, --max-age ...; --help lists all")
    with connect(servers, timeout) as client:
        wanted = changed_settings(settings, client.topic(name))
        found = client.alter_topic(name, partitions=partitions, **wanted)
    if as_json:
        print_json(asdict(found))
    else:
        print_line(f"topic {_summary(found)}")


@app.command()
def delete(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC...", help="Topics to delete.", autocompletion=complete_topics
        ),
    ],
    yes: Yes = False,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Delete topics and all their messages, for good."""
    with connect(servers, timeout) as client:
        for name in names:
            topic = client.topic(name)
            question = f"Delete {name} and its {count(topic.message_count, 'message')} for good?"
            confirm(question, yes=yes, otherwise=f"{name} was not deleted")
            client.delete_topic(name)
            if not as_json:
                print_line(f"topic {name} is deleted")
    if as_json:
        print_json({"deleted": names})


def _retention_holders(client: "Client", topic: "TopicInfo") -> list[str]:
    retention = topic.retention
    if not (retention.keep_until_archived or retention.delete_acked):
        return []
    try:
        return retention_holders(retention, client.groups(topic.name))
    except QuiverError as error:
        return [f"the groups that keep its messages are not known: {error}"]


def _summary(topic: "TopicInfo") -> str:
    partitions = count(len(topic.partitions), "partition")
    replicas = count(topic.replication, "replica")
    if len(topic.partitions) > 1:
        replicas += " each"
    retention = f"kept {format_retention(topic.retention)}"
    if topic.message_count == 0:
        return f"{topic.name}: {partitions} with {replicas}, empty, {retention}"
    messages = f"{count(topic.message_count, 'message')}, {format_size(topic.size_bytes)}"
    return f"{topic.name}: {partitions} with {replicas}, {messages}, {retention}"


def _state(topic: "TopicInfo", down: frozenset[int]) -> str:
    bad = sum(bool(partition_problems(partition, down)) for partition in topic.partitions)
    return f"[yellow]{count(bad, 'partition')} in trouble[/]" if bad else "[green]healthy[/]"


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
