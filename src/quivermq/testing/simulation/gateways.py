"""Gateways of a simulated cluster: each on a machine of its own, with clients that know no broker.

They have no disk, and no faults of one. The faults of a gateway are in `GATEWAY_FAULTS`, which
`faults` adds where there are gateways.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from quivermq.cluster import UserRecord
from quivermq.settings import BrokerSettings
from quivermq.testing.simulation.served_machine import ServedMachine
from quivermq.testing.virtual import SimulatedMachine, World
from quivermq.transports import GatewayServer

GATED: Final = 3
"""Of so many seeds, one has gateways: the last."""
CLIENT_PORT: Final = 7600
_SHARE: Final = 0.6
"""Of users, those that know only gateways."""


class SimulatedGateway(ServedMachine[GatewayServer]):
    """A machine and the gateway that runs on it."""

    def __init__(self, machine: SimulatedMachine, settings: BrokerSettings) -> None:
        super().__init__(machine.host, machine, lambda: GatewayServer(settings, machine))
        self.settings = settings

    @property
    def is_ready(self) -> bool:
        return self.is_serving and self.server is not None and self.server.gateway.is_ready

    @property
    def standing(self) -> str:
        if not self.machine.is_up:
            return "down"
        if not self.is_serving or self.server is None:
            return f"refused: {self.refusal}" if self.refusal else "starting"
        return f"not ready: {why}" if (why := self.server.gateway.unready) else "ready"


class Gateways:
    """All gateways of a seed: none, one or two."""

    def __init__(
        self, world: World, seed: int, join: list[str], more: Callable[[str], dict[str, object]]
    ) -> None:
        """`more`: settings of brokers that gateways have too, by their host. The dice are of their
        own: a seed without gateways is the same run as if there were no such thing."""
        self._dice = dice = Random(f"gateways {seed}")
        number = dice.randint(1, 2) if seed % GATED == GATED - 1 else 0
        self.all = [
            SimulatedGateway(
                SimulatedMachine(world, f"gateway{n}", Random(dice.random())),
                _settings(f"gateway{n}", join, more),
            )
            for n in range(1, number + 1)
        ]
        self.servers = [gateway.settings.listen for gateway in self.all]

    def servers_for_user(self, brokers: list[str]) -> list[str]:
        """The addresses that one more user knows: those of brokers, or those of gateways."""
        return self.servers if self.all and self._dice.random() < _SHARE else brokers

    def start(self) -> None:
        for gateway in self.all:
            gateway.start()

    @property
    def is_ready(self) -> bool:
        return all(gateway.is_ready for gateway in self.all)

    def know(self, knows: Callable[[Mapping[str, UserRecord]], bool]) -> bool:
        """Whether every gateway that runs knows something of the users."""
        return all(
            gateway.server is None
            or not hasattr(gateway.server.gateway, "access")
            or knows(gateway.server.gateway.access.known_users)
            for gateway in self.all
            if gateway.machine.is_up
        )

    @property
    def standing(self) -> str:
        return "".join(f"; {each.name} {each.standing}" for each in self.all)


def _settings(
    host: str, join: list[str], more: Callable[[str], dict[str, object]]
) -> BrokerSettings:
    return BrokerSettings.model_validate(
        {
            "gateway": True,
            "join": ",".join(join),
            "listen": f"{host}:{CLIENT_PORT}",
            "http": "",
            "grpc": "",
            "insecure": True,
            **more(host),
        }
    )
