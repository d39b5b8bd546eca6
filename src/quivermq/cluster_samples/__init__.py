"""Samples of a running cluster, taken from outside: each broker's metrics, and rates between two.

The portal and `quiver top` show them. Knows the client's models; must never know what brokers are
made of.
"""

from quivermq.cluster_samples.figures import (
    TOPIC_RATES,
    GroupFigures,
    TopicFigures,
    cluster_values,
    comparable,
    group_figures,
    topic_figures,
)
from quivermq.cluster_samples.scrape import (
    LEADER,
    STATES,
    Scrape,
    TopicGroup,
    TopicPartition,
    fetch,
    parse,
    quantile,
    scrape_brokers,
)

__all__ = [
    "LEADER",
    "STATES",
    "TOPIC_RATES",
    "GroupFigures",
    "Scrape",
    "TopicFigures",
    "TopicGroup",
    "TopicPartition",
    "cluster_values",
    "comparable",
    "fetch",
    "group_figures",
    "parse",
    "quantile",
    "scrape_brokers",
    "topic_figures",
]
