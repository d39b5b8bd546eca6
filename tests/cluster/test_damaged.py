"""One damaged file on one broker while another was away: real processes, real files."""

import time
from pathlib import Path

import quivermq
from quivermq.testing import Cluster

ACKNOWLEDGED = [b"acknowledged %d" % number for number in range(20)]


def test_one_flipped_bit_in_a_list_of_logs_loses_nothing(tmp_path: Path) -> None:
    with Cluster(nodes=3, data_dir=tmp_path) as cluster:
        with cluster.connect(timeout=10) as client:
            client.create_topic("orders", partitions=1, replication=3)
            client.produce("orders", b"early")
            cluster.nodes[3].kill()
            for value in ACKNOWLEDGED:
                client.produce("orders", value)
        cluster.nodes[1].kill()
        cluster.nodes[2].kill()
        (path,) = tmp_path.glob("**/node-1/**/logs.json")
        content = bytearray(path.read_bytes())
        # In the name of the group: the log is listed for a group that nobody knows.
        content[content.index(b'"log/orders/0"') - 30] ^= 1
        path.write_bytes(content)
        for node in (1, 3):
            cluster.nodes[node].launch()
        for node in (1, 3):
            cluster.nodes[node].wait_listening(30)
        addresses = [cluster.nodes[node].address for node in (1, 3)]
        with quivermq.connect(addresses, timeout=20) as client:
            _until_led(client)
            values = [message.value for message in client.read("orders")]
            assert values == [b"early", *ACKNOWLEDGED]
            client.produce("orders", b"late")
            cluster.nodes[2].launch()
            cluster.nodes[2].wait_listening(30)
            values = [message.value for message in client.read("orders")]
            assert values == [b"early", *ACKNOWLEDGED, b"late"]


def _until_led(client: quivermq.Client) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if client.topic("orders").partitions[0].leader:
                return
        except quivermq.QuiverError:
            pass
        time.sleep(0.1)
    raise AssertionError("nobody leads")
