"""Dashboard and alerts ask for metrics and labels that brokers have: every expression is parsed,
and compared with what brokers tell that have done some of everything."""

import asyncio
import json
import re
import ssl
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc.aio
import promql_parser as promql
import pytest
from prometheus_client.parser import text_string_to_metric_families

import quivermq.aio
from quivermq.cli.app import COMMANDS
from quivermq.errors import Unauthenticated
from quivermq.transports import Server
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from tests.deploy.files import DEPLOY, load
from tests.tls.stage import Certificates
from tests.transports.grpc_stage import Stub
from tests.transports.stage import PATIENCE_S, PATIENT, on_served_loop, serving, until
from tests.transports.test_grpc_tls import trusting

DASHBOARD = json.loads((DEPLOY / "grafana.json").read_text())
PANELS = {panel["title"]: panel for panel in DASHBOARD["panels"] if panel["type"] != "row"}
RULES = {rule["alert"]: rule for rule in load(DEPLOY / "alerts.yaml")["groups"][0]["rules"]}
OF_PROMETHEUS = frozenset({"job", "instance"})
"""Labels that it adds to everything that it scrapes."""
OWN = {"up": [{}]}
"""Series that it makes itself."""
ANYWHERE = "127.0.0.1:0"

Series = dict[str, list[dict[str, str]]]


def expressions() -> Iterator[tuple[str, str, str]]:
    """Of panels and alerts: where it stands, the expression, the text beside it."""
    for title, panel in PANELS.items():
        for target in panel["targets"]:
            yield f"panel {title!r}", target["expr"], target["legendFormat"]
    for name, rule in RULES.items():
        shown = " ".join(rule["annotations"].values())
        # What templates take from the result, as legends write it.
        yield name, rule["expr"], re.sub(r"\{\{ \$labels\.(\w+) \}\}", r"{{\1}}", shown)


def parsed(expression: str) -> Any:
    """By a parser of Prometheus's own grammar; Grafana replaces variables before it asks."""
    plain = expression.replace("$__rate_interval", "5m").replace('"$node"', '".*"')
    return promql.parse(plain.replace('"$topic"', '".*"'))


def labels_of(found: Any, series: Series) -> frozenset[str]:
    """The labels of a result; fails for a name or a label that no broker tells."""
    match found:
        case promql.VectorSelector():
            return _selected(found, series)
        case promql.MatrixSelector():
            return _selected(found.vector_selector, series)
        case promql.AggregateExpr():
            below = labels_of(found.expr, series)
            wanted = frozenset(found.modifier.labels) if found.modifier else frozenset[str]()
            assert wanted <= below, f"by {sorted(wanted)} of {sorted(below)}"
            return wanted
        case promql.BinaryExpr():
            left, right = labels_of(found.lhs, series), labels_of(found.rhs, series)
            # With nothing said, series match by all of their labels.
            assert not (left and right) or left == right, (sorted(left), sorted(right))
            return left or right
        case promql.Call():
            below = frozenset[str]().union(*(labels_of(each, series) for each in found.args))
            if found.func.name == "histogram_quantile":
                assert "le" in below
                return below - {"le"}
            return below
        case promql.ParenExpr() | promql.SubqueryExpr() | promql.UnaryExpr():
            return labels_of(found.expr, series)
        case promql.NumberLiteral():
            return frozenset()
    raise AssertionError(f"{found} is of a kind that is not looked at")


def _selected(found: Any, series: Series) -> frozenset[str]:
    known = series.get(found.name)
    assert known, f"no broker tells {found.name}"
    labels = frozenset.intersection(*map(frozenset, known)) | OF_PROMETHEUS
    for matcher in found.matchers.matchers:
        assert matcher.name in labels, f"{found.name} has no label {matcher.name}"
        if matcher.op == promql.MatchOp.Equal and matcher.name not in OF_PROMETHEUS:
            values = {each[matcher.name] for each in known}
            assert matcher.value in values, f"{matcher.value!r} is none of {values}"
    return labels


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Series:
    """Everything that two brokers tell after some work."""
    found: Series = {}
    on_served_loop(work)(tmp_path_factory.mktemp("brokers"), found)
    return found


async def work(folder: Path, found: Series) -> None:
    certificates = Certificates(folder / "tls")
    usual = {
        "http": ANYWHERE, "grpc": ANYWHERE, "users": True, "cluster_secret": "a" * 32,
        **certificates.settings(), **PATIENT,
    }  # fmt: skip
    async with (
        serving(folder / "1", **usual) as first,
        serving(folder / "2", node_id=2, join=first.listen, **usual) as second,
        quivermq.aio.connect(first.listen, tls=certificates.ca) as client,
    ):
        await until(lambda: first.broker.is_alive(2) and second.broker.is_ready)
        token = await client.users.add("root")
        await client.users.grant("root", "admin")
        async with quivermq.aio.connect(first.listen, tls=certificates.ca, token=token) as admin:
            await through_tcp(admin)
            await through_grpc(first, certificates, token)
            with pytest.raises(Unauthenticated):
                await refused(first, certificates)
            texts = [await scraped(server, certificates, token) for server in (first, second)]
    for family in (one for text in texts for one in text_string_to_metric_families(text)):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    found.update(OWN)


async def through_tcp(client: Any) -> None:
    await client.create_topic("orders", replication=2, max_deliveries=2)
    await client.create_topic("slow", rate_limit=quivermq.RateLimit(per_second=0.01, burst=1))
    for topic in ("orders", "slow"):
        await client.produce_many(topic, [b"a", b"b", b"c", b"d"])
    first, second, third = await client.poll("orders", group="g", max_messages=3, wait=PATIENCE_S)
    await first.ack()
    await second.nack(delay=0)
    await third.reject("why")
    for _ in range(2):
        await client.poll("slow", group="g", max_messages=1, wait=0)

    async def is_dead() -> bool:
        return (await client.group("orders", "g")).dead > 0

    async with asyncio.timeout(PATIENCE_S):
        while not await is_dead():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await client.poll("orders", group="g", max_messages=1, wait=PATIENCE_S)


async def through_grpc(server: Server, certificates: Certificates, token: str) -> None:
    trusted = trusting(certificates)
    async with grpc.aio.secure_channel(server.grpc, trusted) as channel:
        metadata = (("authorization", f"Bearer {token}"),)
        await Stub(channel).Cluster(api.ClusterRequest(), metadata=metadata, timeout=PATIENCE_S)


async def refused(server: Server, certificates: Certificates) -> None:
    wrong = quivermq.aio.connect(server.listen, tls=certificates.ca, token="qv_wrong")
    async with wrong as client:
        with suppress(TimeoutError):
            await client.topics()


async def scraped(server: Server, certificates: Certificates, token: str) -> str:
    context = ssl.create_default_context(cafile=certificates.ca)
    request = urllib.request.Request(f"https://{server.http}/metrics")
    request.add_header("authorization", f"Bearer {token}")

    def read() -> str:
        with urllib.request.urlopen(request, timeout=PATIENCE_S, context=context) as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(read)


@pytest.mark.parametrize(("where", "expression", "text"), list(expressions()))
def test_an_expression_asks_for_what_brokers_tell(
    where: str, expression: str, text: str, series: Series
) -> None:
    labels = labels_of(parsed(expression), series)
    named = set(re.findall(r"\{\{(\w+)\}\}", text))
    assert named <= labels, where


@pytest.mark.parametrize(
    "wrong",
    [
        "sum by (colour) (quiver_ready)",
        "quiver_nothing > 0",
        'quiver_refused_total{code="Nonsense"} > 0',
        'quiver_connections{door="tcp"}',
        "quiver_disk_free_bytes / quiver_group_lag",
        "histogram_quantile(0.9, sum by (node) (rate(quiver_fsync_seconds_bucket[5m])))",
    ],
)
def test_what_brokers_do_not_tell_would_be_noticed(wrong: str, series: Series) -> None:
    with pytest.raises(AssertionError):
        labels_of(parsed(wrong), series)
    with pytest.raises(ValueError, match=r"\w"):
        parsed(f"{wrong}))")


def test_variables_of_the_dashboard_ask_for_labels_that_are_there(series: Series) -> None:
    variables = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
    for name in ("node", "topic"):
        metric, label = re.fullmatch(
            r"label_values\((\w+), (\w+)\)", variables[name]["query"]["query"]
        ).groups()  # type: ignore[union-attr]
        assert label == name
        assert all(label in each for each in series[metric])
    used = set(re.findall(r"\$(\w+)", " ".join(each for _, each, _ in expressions())))
    assert used <= {*variables, "__rate_interval", "labels", "value"}


def test_the_dashboard_shows_what_operators_ask() -> None:
    shown = " ".join(expression for _, expression, _ in expressions())
    for name in (
        "messages_produced", "messages_delivered", "messages_acked", "messages_redelivered",
        "messages_dead_lettered", "bytes_in", "bytes_out", "produce_seconds", "fsync_seconds",
        "raft_state", "raft_term", "raft_replication_lag", "log_size_bytes", "group_lag",
        "group_in_flight", "connections", "overloaded", "requests_total", "refused_total",
        "polls_throttled", "partitions_led", "partitions_under_replicated", "disk_free_bytes",
    ):  # fmt: skip
        assert f"quiver_{name}" in shown, name
    places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    assert len({each["id"] for each in DASHBOARD["panels"]}) == len(places)


@pytest.mark.parametrize("name", RULES)
def test_an_alert_says_what_to_do(name: str) -> None:
    rule = RULES[name]
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert set(rule["annotations"]) == {"summary", "runbook"}
    assert len(rule["annotations"]["runbook"]) > 40
    # An alert is a comparison: anything else would fire as long as there is a series.
    assert isinstance(parsed(rule["expr"]), promql.BinaryExpr)


def test_commands_in_runbooks_exist() -> None:
    texts = " ".join(rule["annotations"]["runbook"] for rule in RULES.values())
    named = set(re.findall(r"`quiver (\w+)", texts))
    assert named
    assert named <= set(COMMANDS)
