"""What `quiver doctor` finds out about a cluster, through the public client alone."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Final, Literal

import quivermq
from quivermq.cli.options import connect
from quivermq.cli.output import count, numbers
from quivermq.cli.troubles import brokers_down, is_outsider, partition_troubles
from quivermq.errors import QuiverError

if TYPE_CHECKING:
    from quivermq.client import ClusterInfo, TopicInfo

Level = Literal["ok", "warn", "bad"]
# A clock is read from the header of an HTTP answer, which counts whole seconds.
_CLOCK_SECONDS_MAX: Final = 2.5
_NAMED_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: how it is, and what to do if it is not well."""

    level: Level
    check: str
    text: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one broker said of the cluster, and how long it took."""

    cluster: "ClusterInfo"
    seconds: float


def cluster_findings(servers: str, timeout: float) -> Iterator[Finding]:
    """Everything about the brokers and the partitions."""
    answers, failures = _ask_everybody(servers, timeout)
    members = {
        address: answer for address, answer in answers.items() if not is_outsider(answer.cluster)
    }
    clusters = [answer.cluster for answer in (members or answers).values()]
    newest = max(clusters, key=lambda cluster: cluster.version, default=None)
    yield from _connection_findings(answers, failures, newest)
    if newest is None or not members:
        return
    yield from _identity_findings(members)
    yield from _leader_findings(members)
    yield from _broker_findings(newest)
    yield from _clock_findings(newest, timeout)
    yield from _topic_findings(",".join(members), timeout)
    yield from _damage_findings(list(members), timeout)


def _ask_everybody(
    servers: str, timeout: float
) -> tuple[dict[str, _Answer], dict[str, QuiverError]]:
    """What each broker says, also those that only others know of; and who does not answer."""
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
            waiting += [node.address for node in answers[address].cluster.nodes if node.address]
    return answers, failures


def _connection_findings(
    answers: dict[str, _Answer], failures: dict[str, QuiverError], newest: "ClusterInfo | None"
) -> Iterator[Finding]:
    for address, answer in answers.items():
        who = f"{address} is broker {answer.cluster.node}"
        if is_outsider(answer.cluster):
            yield Finding(
                "bad",
                "connection",
                f"{who}, which is no member of a cluster: it was removed, or is not let in",
                "its log says which; if it was removed, stop it and leave it out of --servers",
            )
        else:
            yield Finding("ok", "connection", f"{who}, answered in {answer.seconds * 1e3:.1f} ms")
    known = {node.address: node for node in newest.nodes} if newest else {}
    for address, error in failures.items():
        node = known.get(address)
        if node is None:
            yield Finding(
                "bad",
                "connection",
                f"{address} does not answer: {error}",
                "is the broker running, and is this its client address? start it by: quiver serve",
            )
        elif node.alive:
            yield Finding(
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


def _identity_findings(answers: dict[str, _Answer]) -> Iterator[Finding]:
    clusters = sorted({answer.cluster.cluster_id for answer in answers.values()})
    if len(clusters) > 1:
        yield Finding(
            "bad",
            "cluster",
            f"these brokers belong to {len(clusters)} clusters: {', '.join(clusters)}",
            "--servers names brokers that do not belong together; quiver cluster add joins one",
        )
    else:
        yield Finding("ok", "cluster", f"all belong to cluster {clusters[0]}")


def _leader_findings(answers: dict[str, _Answer]) -> Iterator[Finding]:
    leaders = sorted({answer.cluster.leader for answer in answers.values()})
    if leaders == [0]:
        yield Finding(
            "bad",
            "leader",
            "nobody leads the cluster: topics cannot be changed",
            "most brokers must be running and reach each other's --peer-listen address",
        )
    elif len(leaders) > 1:
        yield Finding(
            "warn",
            "leader",
            f"the brokers do not agree who leads: {numbers(leaders)}",
            "that is normal for a second after a failure; otherwise check the network between them",
        )
    else:
        yield Finding("ok", "leader", f"broker {leaders[0]} leads, and all agree")


def _broker_findings(cluster: "ClusterInfo") -> Iterator[Finding]:
    for node in cluster.nodes:
        if node.state.startswith("refused"):
            yield Finding(
                "bad",
                "broker",
                f"broker {node.id} is {node.state}",
                f"give it its own data directory back, or: quiver cluster replace {node.id}",
            )
        elif not node.alive:
            yield Finding(
                "bad",
                "broker",
                f"broker {node.id} at {node.address} is down",
                f"start it again; quiver cluster replace {node.id} if its disk is lost, "
                f"quiver cluster remove {node.id} if all of it is",
            )
        elif node.state == "leaving":
            yield Finding("warn", "broker", f"broker {node.id} is leaving", "")
    versions = sorted({node.version for node in cluster.nodes if node.version})
    if len(versions) > 1:
        yield Finding(
            "warn",
            "version",
            f"the brokers run versions {', '.join(versions)}",
            "finish the upgrade: restart the older ones with the newer version",
        )
    elif versions and versions[0] != quivermq.__version__:
        yield Finding(
            "warn",
            "version",
            f"the brokers run version {versions[0]}, this command is {quivermq.__version__}",
            "use the same version where you can",
        )
    elif versions:
        yield Finding("ok", "version", f"all run version {versions[0]}")
    if cluster.level_possible > cluster.level:
        yield Finding(
            "warn",
            "level",
            f"every broker knows feature level {cluster.level_possible}, and the cluster is at "
            f"{cluster.level}",
            "quiver cluster upgrade, when no earlier release is needed any more",
        )
    if len(cluster.nodes) == 2:
        yield Finding(
            "warn",
            "broker",
            "a cluster of 2 stops when either is down",
            "add a third broker: quiver cluster add HOST:PORT",
        )


def _clock_findings(cluster: "ClusterInfo", timeout: float) -> Iterator[Finding]:
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
        yield Finding(
            "warn",
            "clock",
            f"the clock of broker {node} is {shown} "
            f"{'ahead of' if difference > 0 else 'behind'} this machine's",
            "let NTP set the clocks: timestamps, delays and retention go by them",
        )
    if differences and not wrong:
        yield Finding("ok", "clock", "clocks agree to within 2 s")


def _clock_difference(http_address: str, timeout: float) -> float | None:
    """How far a broker's clock is ahead of ours, if its HTTP listener tells."""
    connection = HTTPConnection(http_address, timeout=timeout)
    try:
        connection.request("GET", "/health")
        date = connection.getresponse().getheader("Date")
        # The header is cut to the second: half of one is the best guess for the rest.
        told = parsedate_to_datetime(date).timestamp() + 0.5 if date else None
    except (OSError, HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return None if told is None else told - datetime.now(UTC).timestamp()


def _topic_findings(servers: str, timeout: float) -> Iterator[Finding]:
    try:
        with connect(servers, timeout) as client:
            topics = client.topics()
            down = brokers_down(client.cluster())
    except QuiverError as error:
        yield Finding(
            "bad",
            "partitions",
            f"the topics cannot be listed: {error}",
            "mend what is named above, then run this again",
        )
        return
    total = sum(len(topic.partitions) for topic in topics)
    leaderless = _places(topics, down, leaderless=True)
    late = _places(topics, down, leaderless=False)
    if leaderless:
        yield Finding(
            "bad",
            "partitions",
            f"{count(len(leaderless), 'partition')} without a leader: {_named(leaderless)}",
            "start the brokers that hold them; quiver topic describe TOPIC names those",
        )
    if late:
        yield Finding(
            "warn",
            "partitions",
            f"{count(len(late), 'partition')} not fully replicated: {_named(late)}",
            "they catch up by themselves once all their brokers are running",
        )
    if not leaderless and not late:
        yield Finding(
            "ok",
            "partitions",
            f"{count(total, 'partition')} of {count(len(topics), 'topic')}: well",
        )


def _damage_findings(addresses: list[str], timeout: float) -> Iterator[Finding]:
    """What brokers say of their own replicas: each is asked, since a leader does not know why
    another replica is behind."""
    found: dict[str, str] = {}
    led: dict[str, bool] = {}
    for address in addresses:
        try:
            with connect(address, timeout) as client:
                topics = client.topics()
        except QuiverError:
            continue
        for topic in topics:
            for partition in topic.partitions:
                place, trouble = f"{topic.name}/{partition.partition}", partition.trouble
                if "broker " in trouble and len(trouble) > len(found.get(place, "")):
                    found[place] = trouble
                led[place] = led.get(place, False) or partition.leader != 0
    for place in list(found)[:_NAMED_MAX]:
        yield Finding(
            "warn" if led[place] else "bad",
            "damage",
            f"{place}: {found[place]}",
            "quiver verify DATA_DIR, on that broker's machine, lists all that is damaged",
        )


def _places(topics: "list[TopicInfo]", down: frozenset[int], *, leaderless: bool) -> list[str]:
    return [
        f"{topic.name}/{partition.partition}"
        for topic in topics
        for partition in topic.partitions
        if partition_troubles(partition, down) and (partition.leader == 0) == leaderless
    ]


def _named(places: list[str]) -> str:
    more = len(places) - _NAMED_MAX
    return ", ".join(places[:_NAMED_MAX]) + (f" and {more:,} more" if more > 0 else "")
