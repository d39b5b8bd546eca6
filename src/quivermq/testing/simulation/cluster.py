"""The simulated cluster: a broker on each machine, which may be killed, stopped and started."""

from collections.abc import Callable, Mapping
from random import Random

from quivermq.cluster import UserRecord
from quivermq.node import HostedReplica
from quivermq.settings import BrokerSettings
from quivermq.testing.simulation.served_machine import ServedMachine
from quivermq.testing.virtual import SimulatedMachine, World
from quivermq.transports import Server

_CLIENT_PORT, _PEER_PORT = 7600, 7700


class SimulatedBroker(ServedMachine[Server]):
    """A machine and the broker that runs on it."""

    def __init__(self, node: int, machine: SimulatedMachine, settings: BrokerSettings) -> None:
        super().__init__(f"broker {node}", machine, lambda: Server(settings, machine))
        self.node = node
        self.settings = settings
        self.has_failed_disk = False
        """Since it started, its disk refused something: it trusts it again after a restart."""

    def start(self) -> None:
        if not self.machine.is_up:
            self.has_failed_disk = False
        super().start()

    @property
    def is_ready(self) -> bool:
        return self.is_serving and self.server is not None and self.server.broker.is_ready

    def is_whole(self) -> bool:
        """Ready, with all replicas that belong here, none of them damaged."""
        if not self.is_ready or self.server is None:
            return False
        is_repairing = any(hosted.replica.is_repairing for hosted in self.replicas)
        return not self.server.broker.hosting.lost and not is_repairing

    @property
    def replicas(self) -> list[HostedReplica]:
        """All replicas that run here."""
        if self.server is None or not hasattr(self.server.broker, "scheduler"):
            return []
        return list(self.server.broker.scheduler.replicas.values())

    @property
    def standing(self) -> str:
        if not self.machine.is_up:
            return "down"
        if self.refusal is not None:
            return f"refused: {self.refusal}"
        if self.server is None or not hasattr(self.server.broker, "membership"):
            return "starting"
        return f"not ready: {why}" if (why := self.server.broker.unready) else "ready"


class SimulatedCluster:
    """All brokers."""

    def __init__(
        self,
        world: World,
        dice: Random,
        size: int,
        settings: dict[str, object],
        more: Callable[[str], dict[str, object]],
    ) -> None:
        """`more`: settings of a broker by its host."""
        self.world = world
        self._dice = dice
        self._settings = settings
        self._more = more
        self.founders = tuple(range(1, size + 1))
        self._last = size
        self.brokers: dict[int, SimulatedBroker] = {}
        for node in self.founders:
            peers = {n: f"{host_of(n)}:{_PEER_PORT}" for n in self.founders if n != node}
            self.brokers[node] = self._new_broker(node, peers=peers)
        self.servers = [broker.settings.listen for broker in self.brokers.values()]
        """Of the founders."""

    def _new_broker(self, node: int, **more: object) -> SimulatedBroker:
        host = host_of(node)
        settings = BrokerSettings.model_validate(
            {
                "node_id": node,
                "listen": f"{host}:{_CLIENT_PORT}",
                "peer_listen": f"{host}:{_PEER_PORT}",
                "http": "",
                "insecure": True,
                "grpc": "",
                "events": False,
                **self._settings,
                **self._more(host),
                **more,
            }
        )
        machine = SimulatedMachine(self.world, host, Random(self._dice.random()))
        return SimulatedBroker(node, machine, settings)

    def add(self, join: str) -> SimulatedBroker:
        """Start another broker, which joins the cluster by one of its members."""
        self._last += 1
        broker = self.brokers[self._last] = self._new_broker(self._last, join=join)
        broker.start()
        return broker

    def retire(self, node: int) -> None:
        """Switch off a broker that is no member any more."""
        broker = self.brokers.pop(node)
        broker.is_retired = True
        broker.machine.kill()

    @property
    def added(self) -> list[SimulatedBroker]:
        return [broker for broker in self.brokers.values() if broker.node not in self.founders]

    @property
    def is_ready(self) -> bool:
        return all(broker.is_ready for broker in self.brokers.values())

    def know(self, knows: Callable[[Mapping[str, UserRecord]], bool]) -> bool:
        """Whether every broker that runs knows something of the users."""
        return all(
            broker.is_ready
            and broker.server is not None
            and knows(broker.server.broker.metadata.view.users)
            for broker in self.brokers.values()
            if broker.machine.is_up
        )

    @property
    def standing(self) -> str:
        return "; ".join(f"broker {b.node} {b.standing}" for b in self.brokers.values())


def host_of(node: int) -> str:
    return f"broker{node}"
