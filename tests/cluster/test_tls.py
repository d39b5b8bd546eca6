"""A cluster with TLS everywhere, whose CA and keys are replaced one broker at a time."""

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from quivermq.errors import ConnectionFailed
from quivermq.testing import Cluster
from quivermq.testing.cluster import Node
from tests.tls.stage import Certificates


class Traffic:
    """Messages that are produced all the while, and must all be there in the end."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._is_over = threading.Event()
        self.sent = 0
        self.errors: list[Exception] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                self._client.produce("orders", str(self.sent).encode())
            except Exception as error:
                self.errors.append(error)
                return
            self.sent += 1

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()


STEPS = ("trust both", "replace certificates", "trust the new one")


def test_the_ca_and_all_keys_are_replaced_while_the_cluster_works(tmp_path: Path) -> None:
    before, after = Certificates(tmp_path / "before"), Certificates(tmp_path / "after")
    bundle = tmp_path / "both.pem"
    bundle.write_text(Path(before.ca).read_text() + Path(after.ca).read_text())
    given = {**before.settings(mutual=True), "tls_ca": str(bundle), "tls_reload_ms": 50}
    cluster = Cluster(nodes=3, settings=given)
    for node in cluster.nodes.values():
        # Each broker has files of its own; the bundle is for clients.
        folder = shutil.copytree(before.folder, tmp_path / f"node-{node.id}")
        own = {"tls_cert": "server.pem", "tls_key": "server.key", "tls_ca": "ca.pem"}
        node.settings |= {name: str(folder / file) for name, file in own.items()}
    with cluster, cluster.connect() as client:
        client.create_topic("orders", partitions=3, replication=3)
        traffic = Traffic(client)
        for times, step in enumerate(STEPS, 1):
            for node in cluster.nodes.values():
                replace(tmp_path / f"node-{node.id}", step, bundle, after)
                wait_loaded(cluster, node, times)
        # Links that are made anew: each broker is killed and comes back.
        for node in cluster.nodes.values():
            node.kill()
            node.start()
            cluster.wait_ready()
        traffic.end()
        assert not traffic.errors
        values = sorted(int(message.value) for message in client.read("orders"))
        assert values == list(range(traffic.sent))
        with cluster.connect(tls=after.ca) as newcomer:
            newcomer.produce("orders", b"under the new CA alone")
        with pytest.raises(ConnectionFailed, match="certificate is not accepted"):
            cluster.connect(tls=before.ca, timeout=2.0)


def replace(folder: Path, step: str, bundle: Path, after: Certificates) -> None:
    if step == "trust both":
        shutil.copy(bundle, folder / "ca.pem")
    elif step == "replace certificates":
        shutil.copy(after.folder / "server.key", folder / "server.key")
        shutil.copy(after.folder / "server.pem", folder / "server.pem")
    else:
        shutil.copy(after.ca, folder / "ca.pem")


def wait_loaded(cluster: Cluster, node: Node, times: int) -> None:
    cluster.wait_until(
        lambda: node.log_text().count("certificates are loaded") >= times,
        f"node {node.id} has not loaded its files {times} times",
    )
