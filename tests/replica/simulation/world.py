"""The simulated cluster: its machines, their network, its clients and the auditor."""

from random import Random

from quivermq.log import LogSettings
from quivermq.replica import ReplicaSettings
from quivermq.testing.virtual.story import Story
from quivermq.testing.virtual.virtual_time import VirtualTime
from tests.replica.simulation.auditor import Auditor
from tests.replica.simulation.clients import SimulatedClient
from tests.replica.simulation.consumer_service import DeadLetterTopic
from tests.replica.simulation.host import Host, HostEnvironment
from tests.replica.simulation.network import Network
from tests.replica.simulation.requests import NodeReply


class World:
    """Everything that a simulation consists of."""

    def __init__(
        self, dice: Random, size: int, log_settings: LogSettings, settings: ReplicaSettings
    ) -> None:
        self.dice = dice
        self.time = VirtualTime()
        self.story = Story(self.time)
        self.auditor = Auditor(self.story)
        self.network = Network(self.time, Random(dice.random()), self.story)
        self.network.deliver = self._deliver
        self.environment = HostEnvironment(
            self.time,
            self.network,
            self.story,
            log_settings,
            settings,
            self.auditor,
            lambda: self.nodes,
            DeadLetterTopic(Random(dice.random())),
        )
        self.quiet_until_ms = 0
        """Until then clients send no new requests."""
        self.hosts: dict[int, Host] = {}
        self.clients: dict[int, SimulatedClient] = {}
        members = tuple(range(1, size + 1))
        for member in members:
            self._new_host(member).found(members)
        self.auditor.note_founders(members)
        for host in self.hosts.values():
            host.start()

    def _new_host(self, member: int) -> Host:
        host = Host(member, self.environment, Random(self.dice.random()))
        self.hosts[member] = host
        return host

    def add_host(self) -> Host:
        """Start another machine with an unused id, not yet a member."""
        host = self._new_host(max(self.hosts) + 1)
        host.join()
        host.start()
        return host

    def add_client(self, client: SimulatedClient) -> None:
        self.clients[client.address] = client

    def _deliver(self, sender: int, to: int, mail: object) -> None:
        if to > 0:
            self.hosts[to].take(sender, mail)
        elif isinstance(mail, NodeReply):
            self.clients[to].take(sender, mail)

    @property
    def nodes(self) -> list[int]:
        """Every machine that was not switched off for good."""
        return [member for member, host in self.hosts.items() if not host.is_retired]

    @property
    def is_quiet(self) -> bool:
        """Whether clients have nothing to do."""
        return self.time.now_ms < self.quiet_until_ms

    @property
    def running(self) -> list[Host]:
        return [host for host in self.hosts.values() if host.is_up]

    @property
    def leader(self) -> Host | None:
        """The leader of the latest term that has a running one."""
        leaders = [host for host in self.running if host.replica.is_leader]
        return max(leaders, key=lambda host: host.replica.term, default=None)
