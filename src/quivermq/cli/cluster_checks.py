"""Checks of a cluster's health, through the public client: for `quiver doctor` and others."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from quivermq.cli.options import connect
from quivermq.cli.output import numbers
from quivermq.cluster_findings import (
    LISTED_MAX,
    CheckResult,
    brokers_down,
    check_brokers,
    check_spread,
    check_topics,
    is_outsider,
    names_damage,
)
from quivermq.errors import QuiverError

if TYPE_CHECKING:
    from quivermq.client import ClusterInfo

# The clock comes from the header of an HTTP answer, which counts whole seconds.
_CLOCK_SECONDS_MAX: Final = 2.5


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
    yield from check_brokers(newest)
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
            topics, cluster = client.topics(), client.cluster()
    except QuiverError as error:
        yield CheckResult(
            "bad",
            "partitions",
            f"the topics cannot be listed: {error}",
            "fix what is listed above, then run this again",
        )
        return
    yield from check_topics(topics, brokers_down(cluster), damaged=damage)
    yield from check_spread(cluster, topics)


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
                if names_damage(trouble) and (
                    place not in found or len(trouble) > len(found[place].text)
                ):
                    found[place] = _Damage(trouble)
                if partition.leader:
                    led.add(place)
    for place, damage in found.items():
        damage.is_led = place in led
    return found


def _check_damage(damage: dict[str, _Damage]) -> Iterator[CheckResult]:
    for place, found in list(damage.items())[:LISTED_MAX]:
        yield CheckResult(
            "warn" if found.is_led else "bad",
            "damage",
            f"{place}: {found.text}",
            "quiver verify DATA_DIR, on that broker's machine, lists all that is damaged",
        )
