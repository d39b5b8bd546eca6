"""`quiver cluster`: shows and changes the brokers, and which of them hold and lead partitions."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.markup import escape

from quivermq.cli.errors import UsageError
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
)
from quivermq.cli.output import (
    count,
    numbers,
    print_error,
    print_json,
    print_line,
    print_table,
    remark,
    table,
)
from quivermq.cli.rebalance_progress import watch
from quivermq.cluster_findings import brokers_down, is_outsider, partition_problems

if TYPE_CHECKING:
    from quivermq.client import Client, ClusterInfo, NodeInfo, TopicInfo, UpgradeInfo

app = typer.Typer(add_completion=False, no_args_is_help=True)

NodeId = Annotated[int, typer.Argument(metavar="NODE", min=1, help="The broker's number.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until all of it is done.")]


@app.command()
def status(
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show the brokers, the leader, and whether all partitions are healthy."""
    with connect(servers, timeout) as client:
        cluster = client.cluster()
        if is_outsider(cluster):
            _refuse_outsider(cluster)
        topics = client.topics()
    if as_json:
        partitions = [partition for topic in topics for partition in topic.partitions]
        down = brokers_down(cluster)
        with_problems = sum(bool(partition_problems(partition, down)) for partition in partitions)
        print_json(
            {
                **asdict(cluster),
                "topics": len(topics),
                "partitions": len(partitions),
                "partitions_in_trouble": with_problems,
            }
        )
        return
    leader = f"led by broker {cluster.leader}" if cluster.leader else "without a leader"
    level = f"feature level {cluster.level}"
    print_line(f"cluster {cluster.cluster_id}, {leader}, {level}", "bold")
    _print_nodes(cluster)
    _print_releases(cluster)
    _print_health(topics, brokers_down(cluster))


def _refuse_outsider(cluster: "ClusterInfo") -> NoReturn:
    print_error(
        f"only broker {cluster.node} answers, and it is not a member of a cluster: name others by "
        "--servers, or make it a member by `quiver cluster add` or `bootstrap`"
    )
    raise typer.Exit(1)


def _print_nodes(cluster: "ClusterInfo") -> None:
    # The version is a column only if it differs: 80 columns are few.
    is_mixed = len({node.version for node in cluster.nodes}) > 1
    has_zones = any(node.zone for node in cluster.nodes)
    made = table("node>", "clients", "http", "state", "leads>", "holds>")
    if has_zones:
        made.add_column("zone")
    if is_mixed:
        made.add_column("version")
    for node in cluster.nodes:
        cells = [
            str(node.id),
            node.address,
            node.http_address or "-",
            _state(node, is_leader=node.id == cluster.leader),
            f"{node.leaders:,}",
            f"{node.replicas:,}",
        ]
        cells += [escape(node.zone) or "-"] if has_zones else []
        made.add_row(*cells, *([node.version] if is_mixed else []))
    print_table(made)
    _print_machines(cluster)


def _print_machines(cluster: "ClusterInfo") -> None:
    """Which brokers share a machine, if any do."""
    machines: dict[str, list[int]] = {}
    for node in cluster.nodes:
        machines.setdefault(node.machine, []).append(node.id)
    shared = {name: nodes for name, nodes in machines.items() if name and len(nodes) > 1}
    if shared:
        named = "; ".join(f"{name} runs brokers {numbers(ids)}" for name, ids in shared.items())
        print_line(f"{count(len(machines), 'machine')}: {named}")


def _print_releases(cluster: "ClusterInfo") -> None:
    versions = {node.version for node in cluster.nodes}
    if len(versions) == 1:
        print_line(f"all brokers run release {versions.pop()}")
    if cluster.level_possible > cluster.level:
        remark(
            f"every broker knows feature level {cluster.level_possible}; when no earlier release "
            "is needed any more: quiver cluster upgrade"
        )


def _state(node: "NodeInfo", *, is_leader: bool) -> str:
    if not node.alive:
        return "[bold red]down[/]"
    if node.state not in {"", "serving"}:
        return f"[yellow]{escape(node.state)}[/]"
    return "[green]serving, leader[/]" if is_leader else "[green]serving[/]"


def _print_health(topics: "list[TopicInfo]", down: frozenset[int]) -> None:
    total = sum(len(topic.partitions) for topic in topics)
    with_problems = [
        f"{topic.name} partition {partition.partition}: {trouble}"
        for topic in topics
        for partition in topic.partitions
        for trouble in partition_problems(partition, down)
    ]
    summary = f"{count(len(topics), 'topic')}, {count(total, 'partition')}"
    if not with_problems:
        print_line(f"{summary}, all healthy" if total else summary, "green" if total else "")
        return
    print_line(f"{summary}, with problems:", "yellow")
    for line in with_problems[:20]:
        print_line(f"  {line}", "yellow")
    if len(with_problems) > 20:
        print_line(f"  and {len(with_problems) - 20:,} more, see: quiver topic describe", "yellow")


@app.command()
def bootstrap(
    addresses: Annotated[
        list[str],
        typer.Argument(metavar="HOST:PORT...", help="The client addresses of all brokers."),
    ],
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Make one cluster of running, empty brokers.

    The first one founds it; the others join it.
    """
    with connect(",".join(addresses), timeout) as client:
        client.bootstrap(addresses)
        _print_members(client, as_json=as_json)


@app.command()
def add(
    address: Annotated[
        str,
        typer.Argument(metavar="HOST:PORT", help="The client address of an empty broker."),
    ],
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Add a running, empty broker to the cluster.

    To give it its share of the data: quiver cluster rebalance
    """
    with connect(servers, timeout) as client:
        client.add_broker(address)
        _print_members(client, as_json=as_json)
    if not as_json:
        remark("it holds nothing yet; try: quiver cluster rebalance")


def _print_members(client: "Client", *, as_json: bool) -> None:
    cluster = client.cluster()
    if as_json:
        print_json(asdict(cluster))
        return
    print_line(f"cluster {cluster.cluster_id} has {count(len(cluster.nodes), 'broker')}", "bold")
    _print_nodes(cluster)


@app.command()
def remove(
    node: NodeId,
    force: Annotated[
        bool, typer.Option("--force", help="Even if partitions lose their last replica.")
    ] = False,
    wait: Wait = True,
    yes: Yes = False,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Move all replicas off a broker, then remove it from the cluster."""
    with connect(servers, timeout) as client:
        confirm(f"Remove broker {node} for good?", yes=yes)
        client.remove_broker(node, force=force)
        if wait:
            watch(
                f"moving data off broker {node}",
                client.rebalance_status,
                # A broker that is behind may never have heard of this one, and would be stopped.
                lambda _: all(known.id != node for known in client.cluster(latest=True).nodes),
                quiet=as_json,
            )
    if as_json:
        print_json({"node": node, "removed": wait})
    elif wait:
        print_line(f"broker {node} is removed; its process may be stopped")
    else:
        print_line(f"broker {node} is leaving; see: quiver cluster rebalance --status")


@app.command()
def replace(
    node: NodeId,
    yes: Yes = False,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Allow a broker that lost its disk to return with an empty one.

    What it held counts as lost; it copies its replicas from the other brokers.
    """
    confirm(f"Did broker {node} lose its data directory for good?", yes=yes)
    with connect(servers, timeout) as client:
        client.replace_broker(node)
    if as_json:
        print_json({"node": node, "replaced": True})
    else:
        print_line(f"broker {node} may start with an empty data directory")


@app.command()
def rebalance(
    leaders_only: Annotated[
        bool, typer.Option("--leaders-only", help="Move leaders only, no data.")
    ] = False,
    only_status: Annotated[bool, typer.Option("--status", help="Only show the progress.")] = False,
    wait: Wait = True,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Spread replicas and leaders evenly over the brokers, one move at a time.

    The rebalance goes on if this command is stopped.
    """
    with connect(servers, timeout) as client:
        if only_status:
            found = client.rebalance_status()
        else:
            found = client.rebalance(leaders_only=leaders_only)
            if wait:
                found = watch(
                    "rebalancing",
                    client.rebalance_status,
                    lambda found: found.done,
                    quiet=as_json,
                )
    if as_json:
        print_json({**asdict(found), "done": found.done})
        return
    if found.done:
        print_line("balanced: nothing is left to move")
        return
    replicas, leaders = count(found.moves_left, "replica"), count(found.leaders_left, "leader")
    print_line(f"left to move: {replicas}, {leaders}")
    for line in found.moving:
        print_line(f"  {line}")
    if found.trouble:
        print_error(found.trouble, label="warning")


@app.command()
def upgrade(
    to: Annotated[
        int | None,
        typer.Option(
            "--to", metavar="LEVEL", min=1, help="By default the highest that all brokers know."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would change.")
    ] = False,
    yes: Yes = False,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Raise the feature level, once all brokers run a release that knows it.

    From then on brokers write what earlier releases cannot read: there is no
    way back to those releases.
    """
    with connect(servers, timeout) as client:
        found = client.upgrade_cluster(to, dry_run=True)
        is_new = found.level > found.before
        if is_new and not as_json:
            _print_levels(found)
        if is_new and not dry_run:
            question = f"Raise the cluster to feature level {found.level}? There is no way back."
            confirm(question, yes=yes)
            found = client.upgrade_cluster(found.level)
    if as_json:
        print_json({**asdict(found), "dry_run": dry_run})
    elif not is_new:
        print_line(f"the cluster is at feature level {found.level}, the highest that brokers know")
    elif dry_run:
        print_line(f"every broker is ready for feature level {found.level}; nothing was changed")
    else:
        print_line(f"the cluster is at feature level {found.level}")


def _print_levels(found: "UpgradeInfo") -> None:
    for level in found.levels:
        print_line(f"feature level {level.level} (from release {level.release}): {level.brings}")


@app.command()
def transfer(
    to: Annotated[
        int, typer.Option("--to", metavar="NODE", min=1, help="The broker that is to lead.")
    ],
    topic: Annotated[
        str | None,
        typer.Argument(metavar="[TOPIC]", help="The topic.", autocompletion=complete_topics),
    ] = None,
    partition: Annotated[
        int | None, typer.Argument(metavar="[PARTITION]", min=0, help="The partition.")
    ] = None,
    metadata: Annotated[
        bool, typer.Option("--metadata", help="The metadata partition, instead of a topic's.")
    ] = False,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Move the leadership of a partition, or of the cluster, to another broker."""
    if metadata == (topic is not None) or (topic is not None and partition is None):
        raise UsageError("name a topic and a partition (transfer orders 0 --to 2), or --metadata")
    with connect(servers, timeout) as client:
        client.transfer(topic, partition or 0, to=to)
    what = "the cluster" if metadata else f"{topic} partition {partition}"
    if as_json:
        print_json({"topic": topic, "partition": partition, "metadata": metadata, "leader": to})
    else:
        print_line(f"broker {to} leads {what}")


@app.command("log-level")
def log_level(
    level: Annotated[
        str | None,
        typer.Argument(
            metavar="[LEVEL]",
            help="debug, info, warning, error, or default: as the broker was started.",
        ),
    ] = None,
    broker: Annotated[
        int | None, typer.Option(metavar="NODE", min=1, help="Of this broker, not of all.")
    ] = None,
    logger: Annotated[
        str, typer.Option(metavar="NAME", help="Of one part of the broker, as peers or http.")
    ] = "",
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Change what brokers log, until they end; without a level, show it."""
    with connect(servers, timeout) as client:
        found = client.set_log_level(level, broker=broker, logger=logger)
    if as_json:
        print_json([{"broker": node, "levels": levels} for node, levels in found.items()])
        return
    for node, levels in found.items():
        named = ", ".join(f"{name} {level}" for name, level in levels.items())
        print_line(f"broker {node}: {named}")
