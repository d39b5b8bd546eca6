"""Test hosts in network namespaces, joined by a switch whose links can be cut.

    with Namespaces(["node-1", "node-2", "clients"]) as hosts:
        hosts.cut("node-1", "node-2")      # silently, in this direction only
        hosts.heal()

Linux only, and only as root. The namespaces have no way out: their addresses exist nowhere else.
A cut is a false entry in the sender's neighbour table, so frames leave and arrive nowhere, as in a
real network: neither end is told, and TCP goes on trying.
"""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count, permutations
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from quivermq.testing.fork_server import NETWORK, enter_network

_FOLDER: Final = Path("/run/netns")
_PREFIX: Final = "quiver-"
_NETWORK: Final = "198.18.0"
"""Of the range that is set aside for testing networks."""
_NOWHERE: Final = "02:00:00:00:ff:ff"
"""An Ethernet address that no host has."""

_numbers = count(1)


def why_not() -> str:
    """Why there can be no namespaces here; empty if there can."""
    if sys.platform != "linux":
        return "network namespaces exist on Linux only"
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "the command ip is missing (Debian: iproute2)"
    probe = f"{_PREFIX}{os.getpid()}-probe"
    try:
        _ip("netns", "add", probe)
        _ip("netns", "del", probe)
    except OSError as error:
        return str(error)
    return ""


class Namespaces:
    """Hosts on one switch. Use it in a `with`."""

    def __init__(self, hosts: Sequence[str]) -> None:
        _remove_left_over()
        self.hosts = tuple(hosts)
        self._stem = f"{_PREFIX}{os.getpid()}-{next(_numbers)}-"
        self._cuts: set[tuple[str, str]] = set()
        self._cutting = threading.Lock()
        switch = self._name("switch")
        try:
            _ip("netns", "add", switch)
            _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
            for number, host in enumerate(self.hosts, 1):
                self._plug_in(switch, number, host)
            _ip("-n", switch, "link", "set", "bridge", "up")
        except BaseException:
            self.close()
            raise

    def _plug_in(self, switch: str, number: int, host: str) -> None:
        space, port, address = self._name(host), f"port-{number}", f"{self.address(host)}/24"
        _ip("netns", "add", space)
        _ip(
            *("-n", switch, "link", "add", port, "type", "veth"),
            *("peer", "name", "eth0", "address", self._hardware(host), "netns", space),
        )
        _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
        _ip("-n", space, "addr", "add", address, "dev", "eth0")
        for device in ("eth0", "lo"):
            _ip("-n", space, "link", "set", device, "up")

    def _name(self, host: str) -> str:
        return f"{self._stem}{host}"

    def address(self, host: str) -> str:
        """Where a host is reached by the others."""
        return f"{_NETWORK}.{self.hosts.index(host) + 1}"

    def _hardware(self, host: str) -> str:
        return f"02:00:00:00:00:{self.hosts.index(host) + 1:02x}"

    @contextmanager
    def entered(self, host: str) -> Iterator[None]:
        """This thread, and those and the processes that it starts meanwhile, are on a host."""
        there = _FOLDER / self._name(host)
        with NETWORK.open("rb") as home, there.open("rb") as away:
            enter_network(away.fileno())
            try:
                yield
            finally:
                enter_network(home.fileno())

    # Links.

    def cut(self, sender: str, receiver: str) -> None:
        """Nothing that one host sends reaches the other any more. The other way stays open."""
        with self._cutting:
            self._point(sender, receiver, _NOWHERE)
            self._cuts.add((sender, receiver))

    def separate(self, *sides: Sequence[str]) -> None:
        """Cut both ways between hosts of different sides. A host on no side reaches all."""
        for one, other in permutations(sides, 2):
            for sender in one:
                for receiver in other:
                    self.cut(sender, receiver)

    def heal(self) -> None:
        """Open everything that was cut."""
        with self._cutting:
            for sender, receiver in self._cuts:
                self._point(sender, receiver, self._hardware(receiver))
            self._cuts.clear()

    def _point(self, sender: str, receiver: str, hardware: str) -> None:
        _ip(
            *("-n", self._name(sender), "neigh", "replace", self.address(receiver)),
            *("lladdr", hardware, "dev", "eth0", "nud", "permanent"),
        )

    def close(self) -> None:
        """Remove the namespaces; what still runs in them is cut off."""
        for path in list(_FOLDER.glob(f"{self._stem}*")):
            _ip("netns", "del", path.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class HostLinks:
    """The links between brokers on hosts of their own, by the numbers of the brokers."""

    def __init__(self, hosts: Namespaces, founders: Iterable[int], clients: str) -> None:
        self._hosts = hosts
        self._clients = clients
        self.founders = tuple(founders)

    def cut(self, sender: int, receiver: int) -> None:
        """Cut a link, one way."""
        self._hosts.cut(f"node-{sender}", f"node-{receiver}")

    def lose_answers(self, node: int) -> None:
        """Clients reach a node, and its answers do not reach them."""
        self._hosts.cut(f"node-{node}", self._clients)

    def isolate(self, node: int) -> None:
        """Cut a node off from all others, both ways; clients reach it."""
        self.partition([node], [other for other in self.founders if other != node])

    def partition(self, *sides: Collection[int]) -> None:
        """Nodes hear only those on a side of theirs. One that is on several sides is a bridge."""
        self._hosts.heal()
        joined = {pair for side in sides for pair in permutations(side, 2)}
        for pair in permutations(self.founders, 2):
            if pair not in joined:
                self.cut(*pair)

    def heal(self) -> None:
        """Open everything that was cut."""
        self._hosts.heal()


def _ip(*arguments: str) -> None:
    command = ["ip", *arguments]
    done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - no shell
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.decode().strip()}")


def _remove_left_over() -> None:
    """Remove namespaces of processes that ended without closing them."""
    for path in _FOLDER.glob(f"{_PREFIX}*"):
        owner = path.name.removeprefix(_PREFIX).split("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            # Another process may be removing it too.
            with suppress(OSError):
                _ip("netns", "del", path.name)
