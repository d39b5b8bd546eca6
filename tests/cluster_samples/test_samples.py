"""Samples of a cluster: metrics as text, and rates between two scrapes."""

from dataclasses import replace

import pytest

from quivermq.cluster_samples import (
    Scrape,
    cluster_values,
    group_figures,
    parse,
    quantile,
    topic_figures,
)

TEXT = """\
# HELP quiver_messages_produced_total Messages stored here as leader.
quiver_messages_produced_total{node="1",partition="0",topic="orders"} 10.0
quiver_messages_produced_total{node="1",partition="1",topic="orders"} 5.0
quiver_group_lag{group="g",node="1",partition="0",topic="orders"} 9.0
quiver_group_lag{group="g",node="1",partition="1",topic="orders"} 1.0
quiver_fsync_seconds_bucket{le="0.001",node="1"} 8.0
quiver_fsync_seconds_bucket{le="+Inf",node="1"} 10.0
quiver_raft_state{node="1",partition="0",topic="orders"} 4.0
quiver_raft_replication_lag{member="2",node="1",partition="0",topic="orders"} 3.0
quiver_connections{node="1",transport="tcp"} 2.0
quiver_connections{node="1",transport="http"} 1.0
process_start_time_seconds 1.5e+09
python_gc_objects_collected_total{generation="0"} 3.0
quiver_broken{ nonsense
"""


def test_metrics_are_read_by_what_they_are_of() -> None:
    found = parse(TEXT, 1)
    assert found.partitions["quiver_messages_produced_total"] == {
        ("orders", 0): 10,
        ("orders", 1): 5,
    }
    assert found.groups["quiver_group_lag"] == {("orders", "g"): 10}
    assert found.buckets["quiver_fsync_seconds"] == {0.001: 8, float("inf"): 10}
    assert found.followers == {("orders", 0, 2): 3}
    assert found.plain["quiver_connections"] == 3
    assert found.started == 1.5e9
    assert found.state_of(("orders", 0)) == "leader"
    assert found.state_of(("orders", 7)) == ""


def test_a_quantile_is_of_what_happened_between_two_scrapes() -> None:
    before = {0.001: 100.0, 0.01: 100.0, float("inf"): 100.0}
    after = {0.001: 100.0, 0.01: 200.0, float("inf"): 200.0}
    assert 0.009 < quantile(0.99, before, after) <= 0.01
    assert quantile(0.99, after, after) == 0
    assert quantile(0.99, {}, {}) == 0


def scraped(at: float, text: str = TEXT) -> Scrape:
    return replace(parse(text, 1), at=at)


def test_rates_are_those_between_two_scrapes_of_a_broker() -> None:
    later = TEXT.replace("10.0\nquiver_messages", "50.0\nquiver_messages")
    first, second = {1: scraped(100.0)}, {1: scraped(104.0, later)}
    assert topic_figures(first, {})["orders"].rates == {}, "one scrape has no rate"
    figures = topic_figures(second, first)
    assert figures["orders"].rates["in"] == 10.0
    assert figures["orders"].produced == {0: 50.0, 1: 5.0}
    values = cluster_values(second, first, figures, group_figures(second, first))
    assert (values["in"], values["lag"], values["connections"]) == (10.0, 10.0, 3.0)


@pytest.mark.parametrize("change", [("1.5e+09", "1.6e+09"), ("at", "")])
def test_a_broker_that_started_again_has_no_rate_at_first(change: tuple[str, str]) -> None:
    first = {1: scraped(100.0)}
    second = {1: scraped(100.0 if change[0] == "at" else 104.0, TEXT.replace(*change))}
    assert topic_figures(second, first)["orders"].rates == {}


def test_a_topic_and_a_group_are_summed_over_brokers() -> None:
    other = replace(scraped(100.0), node=2)
    both = {1: scraped(100.0), 2: other}
    assert topic_figures(both, {})["orders"].produced == {0: 20.0, 1: 10.0}
    assert group_figures(both, {})["orders", "g"].lag == 20.0
