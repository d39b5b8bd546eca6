"""The simulated cluster: a broker on each machine, which may be killed, stopped and started."""

from functools import partial
from random import Random
from typing import Final

from quivermq.errors import QuiverError
from quivermq.node import HostedReplica
from quivermq.settings import BrokerSettings
from quivermq.testing.virtual import Process, SimulatedMachine, World
from quivermq.transports import Server

_CLIENT_PORT, _PEER_PORT = 7600, 7700
_STOP_MS: Final = 20_000
"""A broker that has not stopped by then is killed."""


class SimulatedBroker:
    """A machine and the broker that runs on it."""

    def __init__(self, node: int, machine: SimulatedMachine, settings: BrokerSettings) -> None:
        self.node = node
        self.machine = machine
        self.settings = settings
        self.server: Server | None = None
        self.refusal: QuiverError | None = None
        """Why it did not start."""
        self.is_stopping = False
        self.is_retired = False
        self.has_failed_disk = False
        """Since it started, its disk refused something: it trusts it again after a restart."""
        machine.on_death = self._died

    def start(self) -> None:
        if self.machine.is_up or self.is_retired:
            return
        self.refusal = None
        self.is_stopping = self.has_failed_disk = False
        self.machine.world.story.tell(f"broker {self.node} starts")
        self.machine.run(self._run, f"broker {self.node}")

    async def _run(self) -> None:
        server = self.server = Server(self.settings, self.machine)
        try:
            await server.start()
        except QuiverError as error:
            self.refusal = error
            self.machine.world.story.tell(f"broker {self.node} does not start: {error}")

    def _died(self) -> None:
        self._start_later(self.machine.dice.uniform(50, 2_000))

    def _start_later(self, down_ms: float) -> None:
        self.machine.world.time.after_ms(down_ms, self.start)

    def crash(self, *, power: bool, down_ms: float) -> None:
        """Killed, or without power; starts again after a while."""
        if self.machine.is_up:
            (self.machine.lose_power if power else self.machine.kill)()
            self._start_later(down_ms)

    def restart(self, down_ms: float) -> None:
        """Stopped as an operator would, and started again."""
        process = self.machine.process
        if process is None or self.is_stopping or self.server is None:
            return
        self.is_stopping = True
        process.loop.call_soon(self._begin_to_stop, process, self.server, down_ms)
        self.machine.world.time.after_ms(_STOP_MS, partial(self._end, process, down_ms))

    def _begin_to_stop(self, process: Process, server: Server, down_ms: float) -> None:
        stopping = process.loop.create_task(server.stop())
        stopping.add_done_callback(lambda _: self._end_soon(process, down_ms))

    def _end_soon(self, process: Process, down_ms: float) -> None:
        self.machine.world.time.after_ms(0.1, partial(self._end, process, down_ms))

    def _end(self, process: Process, down_ms: float) -> None:
        if self.machine.process is process:
            self.machine.kill()
            self._start_later(down_ms)

    @property
    def is_ready(self) -> bool:
        server = self.server
        return (
            self.machine.is_up
            and not self.is_stopping
            and server is not None
            and server.client_connections is not None
            and hasattr(server.broker, "membership")
            and server.broker.is_ready
        )

    @property
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

    def __init__(self, world: World, dice: Random, size: int, settings: dict[str, object]) -> None:
        self.world = world
        self._dice = dice
        self._settings = settings
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

    @property
    def standing(self) -> str:
        return "; ".join(f"broker {b.node} {b.standing}" for b in self.brokers.values())


def host_of(node: int) -> str:
    return f"broker{node}"
