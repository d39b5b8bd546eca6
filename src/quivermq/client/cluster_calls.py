"""The blocking client's methods for brokers: see `quivermq.Client`, which has them all."""

from collections.abc import Sequence

from quivermq.client.core import Core
from quivermq.client.models import ClusterInfo, RebalanceInfo, UpgradeInfo
from quivermq.client.transport import run


class ClusterCalls:
    """Looking after the cluster."""

    _core: Core

    def cluster(self) -> ClusterInfo:
        """The brokers, who is alive, and who leads."""
        return run(self._core.admin.cluster())

    def stats(self, server: str | None = None) -> dict[str, float]:
        """Figures by name, as in the metrics, of the broker at `server`; by default of any."""
        return run(self._core.admin.stats(server))

    def bootstrap(self, addresses: Sequence[str]) -> ClusterInfo:
        """Make one cluster of brokers that hold nothing yet.

        >>> client.bootstrap(["127.0.0.1:7600", "127.0.0.1:7601", "127.0.0.1:7602"])
        """
        return run(self._core.admin.bootstrap(addresses))

    def add_broker(self, address: str) -> ClusterInfo:
        """Let a broker that holds nothing yet join this cluster."""
        return run(self._core.admin.add_broker(address))

    def remove_broker(self, node: int, *, force: bool = False) -> None:
        """Let a broker leave: its partitions move to the others first.

        With `force` even if partitions lose their last replica.
        """
        run(self._core.admin.remove_broker(node, force=force))

    def replace_broker(self, node: int) -> None:
        """A broker lost its data: let the empty directory it came back with take its place."""
        run(self._core.admin.replace_broker(node))

    def upgrade_cluster(self, to: int | None = None, *, dry_run: bool = False) -> UpgradeInfo:
        """Raise the feature level, by default to the highest that brokers know. No way back."""
        return run(self._core.admin.upgrade_cluster(to, dry_run=dry_run))

    def rebalance(self, *, leaders_only: bool = False) -> RebalanceInfo:
        """Begin to spread partitions and leaders evenly; `rebalance_status` tells how far it is."""
        return run(self._core.admin.rebalance(leaders_only=leaders_only, status_only=False))

    def rebalance_status(self) -> RebalanceInfo:
        """How far a rebalance is."""
        return run(self._core.admin.rebalance(leaders_only=False, status_only=True))

    def transfer(self, topic: str | None, partition: int = 0, *, to: int) -> None:
        """Let the replica on node `to` lead a partition; with topic None, the metadata group."""
        run(self._core.admin.transfer(topic, partition, to))
