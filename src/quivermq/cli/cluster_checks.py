"""Checks of a cluster's health, through the public client: for `quiver doctor` and others."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal

import quivermq
from quivermq.cli.options import connect
from quivermq.cli.output import count, numbers
from quivermq.errors import QuiverError

if TYPE_CHECKING:
    from quivermq.client import ClusterInfo, PartitionInfo, TopicInfo

Level = Literal["ok", "warn", "bad"]
# The clock comes from the header of an HTTP answer, which counts whole seconds.
_CLOCK_SECONDS_MAX: Final = 2.5
_LISTED_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check, and what to do if it is not ok."""

    level: Level
    check: str
    text: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class _Answer:
    """One broker's answer about the cluster, and how long it took."""

    cluster: "ClusterInfo"
    seconds: float


def check_cluster(servers: str, timeout: float) -> Iterator[CheckResult]:
    """Check the brokers and the partitions."""
    answers, failures = _ask_all(servers, timeout)
    members = {
        address: answer for address, answer in answers.items() if not is_outsider(answer.cluster)
    }
    clusters = [answer.cluster for answer in (members or answers).values()]
    newest = max(clusters, key=lambda cluster: cluster.version, default=None)
    yield from _check_connections(answers, failures, newest)
    if newest is None or not members:
        return
    yield from _check_identity(members)
    yield from _check_leader(members)
    yield from _check_brokers(newest)
    yield from _check_clocks(newest, timeout)
    damage = _find_damage(list(members), timeout)
    yield from _check_partitions(",".join(members), timeout, damage)
    yield from _check_damage(damage)


def _ask_all(servers: str, timeout: float) -> tuple[dict[str, _Answer], dict[str, QuiverError]]:
    """Ask each broker, also those that only other brokers name; the answers, and the failures."""
    answers: dict[str, _Answer] = {}
    failures: dict[str, QuiverError] = {}
    waiting = [server.strip() for server in servers.split(",") if server.strip()]
    while waiting:
        address = waiting.pop(0)
        if address in answers or address in failures:
            continue
        try:
            answers[address] = _ask(address, timeout)
        except QuiverError as error:
            failures[address] = error
        else:
            cluster = answers[address].cluster
            # Whoever is behind a gateway need not reach brokers.
            if not cluster.by_gateway:
                waiting += [node.address for node in cluster.nodes if node.address]
    return answers, failures


def _check_connections(
    answers: dict[str, _Answer], failures: dict[str, QuiverError], newest: "ClusterInfo | None"
) -> Iterator[CheckResult]:
    for address, answer in answers.items():
        who = f"{address} is broker {answer.cluster.node}"
        if answer.cluster.by_gateway:
            who = f"{address} is a gateway"
        if is_outsider(answer.cluster):
            yield CheckResult(
                "bad",
                "connection",
                f"{who}, which is not a member of a cluster: it was removed, or not admitted",
                "its log says which; if it was removed, stop it and leave it out of --servers",
            )
        else:
            yield CheckResult(
                "ok", "connection", f"{who}, answered in {answer.seconds * 1e3:.1f} ms"
            )
    known = {node.address: node for node in newest.nodes} if newest else {}
    for address, error in failures.items():
        node = known.get(address)
        if node is None:
            yield CheckResult(
                "bad",
                "connection",
                f"{address} does not answer: {error}",
                "is the broker running, and is this its client address? start it by: quiver serve",
            )
        elif node.alive:
            yield CheckResult(
                "bad",
                "connection",
                f"broker {node.id} at {address} answers other brokers, but not here: {error}",
                "clients must reach that address: see --advertise, and the firewall between",
            )


def _ask(address: str, timeout: float) -> _Answer:
    with connect(address, timeout) as client:
        client.cluster()  # the first answer includes the handshake
        began = time.perf_counter()
        return _Answer(client.cluster(), time.perf_counter() - began)


def _check_identity(answers: dict[str, _Answer]) -> Iterator[CheckResult]:
    clusters = sorted({answer.cluster.cluster_id for answer in answers.values()})
    if len(clusters) > 1:
        yield CheckResult(
            "bad",
            "cluster",
            f"these brokers belong to {len(clusters)} clusters: {', '.join(clusters)}",
            "--servers names brokers that do not belong together; quiver cluster add joins one",
        )
    else:
        yield CheckResult("ok", "cluster", f"all brokers belong to cluster {clusters[0]}")


def _check_leader(answers: dict[str, _Answer]) -> Iterator[CheckResult]:
    leaders = sorted({answer.cluster.leader for answer in answers.values()})
    if leaders == [0]:
        yield CheckResult(
            "bad",
            "leader",
            "the cluster has no leader: topics cannot be changed",
            "most brokers must run, and reach each other's --peer-listen address",
        )
    elif len(leaders) > 1:
        yield CheckResult(
            "warn",
            "leader",
            f"the brokers do not agree on the leader: {numbers(leaders)}",
            "that is normal for a second after a failure; otherwise check the network between them",
        )
    else:
        yield CheckResult("ok", "leader", f"broker {leaders[0]} leads; all brokers agree")


def _check_brokers(cluster: "ClusterInfo") -> Iterator[CheckResult]:
    for node in cluster.nodes:
        if node.state.startswith("refused"):
            yield CheckResult(
                "bad",
                "broker",
                f"broker {node.id} is {node.state}",
                f"give it its own data directory back, or: quiver cluster replace {node.id}",
            )
        elif not node.alive:
            yield CheckResult(
                "bad",
                "broker",
                f"broker {node.id} at {node.address} is down",
                f"start it again; quiver cluster replace {node.id} if its disk is lost, "
                f"quiver cluster remove {node.id} if the machine is",
            )
        elif node.state == "leaving":
            yield CheckResult("warn", "broker", f"broker {node.id} is leaving", "")
    versions = sorted({node.version for node in cluster.nodes if node.version})
    if len(versions) > 1:
        yield CheckResult(
            "warn",
            "version",
            f"the brokers run versions {', '.join(versions)}",
            "finish the upgrade: restart the older ones with the newer version",
        )
    elif versions and versions[0] != quivermq.__version__:
        yield CheckResult(
            "warn",
            "version",
            f"the brokers run version {versions[0]}, this command is {quivermq.__version__}",
            "use the same version where you can",
        )
    elif versions:
        yield CheckResult("ok", "version", f"all brokers run version {versions[0]}")
    if cluster.level_possible > cluster.level:
        yield CheckResult(
            "warn",
            "level",
            f"every broker knows feature level {cluster.level_possible}, and the cluster is at "
            f"{cluster.level}",
            "quiver cluster upgrade, when no earlier release is needed any more",
        )
    if len(cluster.nodes) == 2:
        yield CheckResult(
            "warn",
            "broker",
            "a cluster of 2 stops when either is down",
            "add a third broker: quiver cluster add HOST:PORT",
        )


def _check_clocks(cluster: "ClusterInfo", timeout: float) -> Iterator[CheckResult]:
    differences = {
        node.id: difference
        for node in cluster.nodes
        if node.alive and node.http_address
        if (difference := _clock_difference(node.http_address, timeout)) is not None
    }
    wrong = {node: found for node, found in differences.items() if abs(found) > _CLOCK_SECONDS_MAX}
    for node, difference in wrong.items():
        size = abs(difference)
        shown = f"{size:.0f} s" if size < 2 * 3600 else f"{size / 3600:.1f} h"
        yield CheckResult(
            "warn",
            "clock",
            f"the clock of broker {node} is {shown} "
            f"{'ahead of' if difference > 0 else 'behind'} this machine's",
            "set the clocks by NTP: timestamps, delays and retention depend on them",
        )
    if differences and not wrong:
        yield CheckResult("ok", "clock", "clocks agree to within 2 s")


def _clock_difference(http_address: str, timeout: float) -> float | None:
    """How far a broker's clock is ahead of ours; None if its HTTP listener does not answer."""
    from email.utils import parsedate_to_datetime  # noqa: PLC0415  (only the doctor needs HTTP)
    from http.client import HTTPConnection, HTTPException  # noqa: PLC0415

    connection = HTTPConnection(http_address, timeout=timeout)
    try:
        connection.request("GET", "/health")
        date = connection.getresponse().getheader("Date")
        # The header is cut to the second: half of one is the best guess for the rest.
        theirs = parsedate_to_datetime(date).timestamp() + 0.5 if date else None
    except (OSError, HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return None if theirs is None else theirs - datetime.now(UTC).timestamp()


def _check_partitions(
    servers: str, timeout: float, damage: dict[str, "_Damage"]
) -> Iterator[CheckResult]:
    try:
        with connect(servers, timeout) as client:
            topics = client.topics()
            down = brokers_down(client.cluster())
    except QuiverError as error:
        yield CheckResult(
            "bad",
            "partitions",
            f"the topics cannot be listed: {error}",
            "fix what is listed above, then run this again",
        )
        return
    total = sum(len(topic.partitions) for topic in topics)
    # A broker that runs and lost data is not helped by starting it.
    without_leader = _find_problems(topics, down, leaderless=True)
    leaderless = [place for place in without_leader if place not in damage]
    late = _find_problems(topics, down, leaderless=False)
    if leaderless:
        yield CheckResult(
            "bad",
            "partitions",
            f"{count(len(leaderless), 'partition')} without a leader: {_list(leaderless)}",
            "start the brokers that hold them; quiver topic describe TOPIC lists these",
        )
    if late:
        yield CheckResult(
            "warn",
            "partitions",
            f"{count(len(late), 'partition')} not fully replicated: {_list(late)}",
            "they catch up once all their brokers run",
        )
    if not without_leader and not late:
        yield CheckResult(
            "ok",
            "partitions",
            f"{count(total, 'partition')} of {count(len(topics), 'topic')}: healthy",
        )


@dataclass(slots=True)
class _Damage:
    """Damage to a partition's replicas, in words, and whether others lead it all the same."""

    text: str
    is_led: bool = False


def _find_damage(addresses: list[str], timeout: float) -> dict[str, _Damage]:
    """Ask each broker about its own replicas: a leader does not know why another is behind."""
    found: dict[str, _Damage] = {}
    led: set[str] = set()
    for address in addresses:
        try:
            with connect(address, timeout) as client:
                topics = client.topics()
        except QuiverError:
            continue
        for topic in topics:
            for partition in topic.partitions:
                place, trouble = f"{topic.name}/{partition.partition}", partition.trouble
                if _names_damage(trouble) and (
                    place not in found or len(trouble) > len(found[place].text)
                ):
                    found[place] = _Damage(trouble)
                if partition.leader:
                    led.add(place)
    for place, damage in found.items():
        damage.is_led = place in led
    return found


def _check_damage(damage: dict[str, _Damage]) -> Iterator[CheckResult]:
    for place, found in list(damage.items())[:_LISTED_MAX]:
        yield CheckResult(
            "warn" if found.is_led else "bad",
            "damage",
            f"{place}: {found.text}",
            "quiver verify DATA_DIR, on that broker's machine, lists all that is damaged",
        )


def _names_damage(trouble: str) -> bool:
    """Whether a broker said it of its own replica."""
    return "broker " in trouble


def _find_problems(
    topics: "list[TopicInfo]", down: frozenset[int], *, leaderless: bool
) -> list[str]:
    return [
        f"{topic.name}/{partition.partition}"
        for topic in topics
        for partition in topic.partitions
        if partition_problems(partition, down) and (partition.leader == 0) == leaderless
    ]


def _list(partitions: list[str]) -> str:
    more = len(partitions) - _LISTED_MAX
    return ", ".join(partitions[:_LISTED_MAX]) + (f" and {more:,} more" if more > 0 else "")


def brokers_down(cluster: "ClusterInfo") -> frozenset[int]:
    """The brokers that the others do not hear."""
    return frozenset(node.id for node in cluster.nodes if not node.alive)


def is_outsider(cluster: "ClusterInfo") -> bool:
    """Whether the broker that answered is not a member: it was removed, or not admitted."""
    return not cluster.is_told_by_member


def partition_problems(partition: "PartitionInfo", down: frozenset[int]) -> list[str]:
    """The partition's problems, a sentence each. `down` are the brokers that do not run: a leader
    with nothing to send does not notice."""
    found = []
    in_sync = partition.replicas if partition.in_sync is None else partition.in_sync
    late = sorted(set(partition.replicas) - (set(in_sync) - down))
    if not partition.leader:
        until = "" if _names_damage(partition.trouble) else " until most of its replicas are back"
        found.append(f"no leader: it takes no messages{until}")
    elif late:
        found.append(f"replicas behind or down: {numbers(late)}")
    if partition.trouble:
        found.append(partition.trouble)
    return found
