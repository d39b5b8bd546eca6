"""Brokers that stop gracefully: nobody waits for an election."""

from quivermq.testing import Cluster
from quivermq.testing.trials import trial

ELECTION_S = 8.0
SLOW_ELECTIONS = {"tick_ms": 800}


def test_a_rolling_restart_needs_no_election_timeout() -> None:  # F24
    with Cluster(settings=SLOW_ELECTIONS) as cluster, trial(cluster) as load:
        load.slowest_s = 0.0
        for node in cluster.nodes.values():
            node.stop()
            load.wait_progress()
            node.start()
            cluster.wait_ready()
            load.wait_progress()
        assert load.slowest_s < 6.0 < ELECTION_S
