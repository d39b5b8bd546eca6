"""Starts a cluster of real brokers on free ports, for tests.

    from quivermq.testing import Cluster

    with Cluster(nodes=3) as cluster, cluster.connect() as client:
        client.create_topic("orders")
        client.produce("orders", b"first")
        cluster.nodes[cluster.leader("orders")].kill()
        client.produce("orders", b"second")

Each broker is a process. Nothing is left when the `with` ends: no process, no port, no file. When
a test fails in it, the end of every broker's log is added to the error.
"""

import asyncio
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self

import quivermq
from quivermq.errors import QuiverError
from quivermq.testing.cluster.direct_connection import DirectConnection
from quivermq.testing.cluster.namespaces import Namespaces
from quivermq.testing.cluster.node import START_S, ClusterError, Node
from quivermq.testing.cluster.wiring import Wiring
from quivermq.testing.disks import Disks
from quivermq.wire import proto

READY_S: Final = 30.0
_LOOK_AGAIN_S: Final = 0.02
_ASK_S: Final = 2.0
_PORT: Final = 7640
_PEER_PORT: Final = 7641
"""On a host of its own a broker has every port to itself."""
_FIRST_GATEWAY: Final = 60_001
"""Gateways have no number; their logs do."""
_CAN_HOLD: Final = sys.platform == "linux"


class Cluster:
    """Brokers numbered from 1. Use it in a `with`, or an `async with`."""

    stalls_fail: ClassVar[bool] = False
    """Whether a `with` fails in which a broker held its event loop for `stall_budget_ms`."""

    def __init__(
        self,
        nodes: int = 3,
        data_dir: Path | str | None = None,
        settings: Mapping[str, Any] | None = None,
        *,
        proxied: bool = False,
        hosts: Namespaces | None = None,
        disks: str = "",
    ) -> None:
        """`settings` are those of `BrokerSettings`, for all brokers. In a `data_dir` of your own
        the files stay. `proxied` brokers are reached through links that can be cut: `wiring`. With
        `hosts`, broker N runs on the host `node-N`, and only hosts can reach it. `disks` that can
        fail and lose power are `fuse`, mounted file systems (Linux, root; see `why_no_fuse`), or
        `shim`, which works everywhere, but not for brokers of other releases."""
        self._hosts = hosts
        self._disks = Disks(disks) if disks else None
        self._settings = {"http": "", **(settings or {})}
        self._is_temporary = data_dir is None
        self._folder = Path(data_dir or tempfile.mkdtemp(prefix="quiver-cluster-"))
        self._ports: list[HeldPort] = []
        self.nodes: dict[int, Node] = {}
        self.gateways: list[Node] = []
        """See `add_gateway`."""
        self._last_id = nodes
        for node_id in range(1, nodes + 1):
            self._make_node(node_id)
        self.wiring = Wiring(self.nodes) if proxied else None
        for node in self.nodes.values():
            others = [other for other in self.nodes.values() if other is not node]
            node.settings["peers"] = {other.id: other.peer_address for other in others}
            if self.wiring is not None:
                node.settings |= self.wiring.settings_of(node.id)

    def _make_node(self, node_id: int) -> Node:
        settings = {**self._addresses(node_id), **self._settings}
        folder = self._folder / f"node-{node_id}"
        disk = self._disks.add(node_id, folder) if self._disks is not None else None
        node = Node(node_id, folder, settings, disk)
        if self._hosts is not None:
            node.host = partial(self._hosts.entered, f"node-{node_id}")
        self.nodes[node_id] = node
        return node

    def _addresses(self, node_id: int) -> dict[str, str]:
        if self._hosts is not None:
            host = self._hosts.address(f"node-{node_id}")
            return {"listen": f"{host}:{_PORT}", "peer_listen": f"{host}:{_PEER_PORT}"}
        listen, peer_listen = HeldPort(), HeldPort()
        self._ports += (listen, peer_listen)
        return {"listen": listen.address, "peer_listen": peer_listen.address}

    # Starting and stopping.

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            error.add_note(self.log_tails())
            self.close()
            return
        stalls = [
            f"node {node.id}: {stall}"
            for node in (*self.nodes.values(), *self.gateways)
            for stall in node.stalls()
        ]
        self.close()
        if stalls and self.stalls_fail:
            raise ClusterError("\n".join(stalls))

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    def start(self, timeout: float = READY_S) -> None:
        """Start all brokers that do not run, and wait until they form a cluster."""
        idle = [node for node in self.nodes.values() if not node.is_running]
        for node in idle:
            node.launch()
        for node in idle:
            node.wait_listening(START_S)
        self.wait_ready(timeout)

    def stop(self) -> None:
        """Stop all gracefully; they can be started again."""
        for node in self.nodes.values():
            node.terminate()
        for node in self.nodes.values():
            node.wait_stopped()

    def close(self) -> None:
        """Kill all brokers, and remove their files unless the `data_dir` was given."""
        for node in (*self.gateways, *self.nodes.values()):
            node.close()
        if self.wiring is not None:
            self.wiring.close()
        for port in self._ports:
            port.release()
        if self._disks is not None:
            self._disks.close()
        if self._is_temporary:
            shutil.rmtree(self._folder, ignore_errors=True)

    def add_node(self, *, start: bool = True) -> Node:
        """Add a broker that joins the others."""
        self._last_id += 1
        node = self._make_node(self._last_id)
        node.settings["join"] = next(other.address for other in self.running)
        if start:
            node.start()
        return node

    def add_gateway(self, **settings: Any) -> Node:
        """Start a gateway in front of these brokers: clients connect to its `address`."""
        number = _FIRST_GATEWAY + len(self.gateways)
        listen = HeldPort()
        self._ports.append(listen)
        given = {"gateway": True, "join": self.servers, "peer_listen": "127.0.0.1:0"}
        given |= {"listen": listen.address, **self._settings, **settings}
        gateway = Node(number, self._folder / f"gateway-{number}", given)
        self.gateways.append(gateway)
        gateway.start()
        return gateway

    def drop_node(self, node: int) -> None:
        """Stop a broker that has left the cluster, and forget it."""
        gone = self.nodes.pop(node)
        gone.stop()
        gone.close()

    # Looking.

    @property
    def servers(self) -> str:
        """The addresses that a client connects to."""
        return ",".join(self.address_of(node.id) for node in self.nodes.values())

    def address_of(self, node: int) -> str:
        """Where clients reach a node: through its door, if there is one."""
        if self.wiring is not None and node in self.wiring.doors:
            return self.wiring.doors[node].address
        return self.nodes[node].address

    @property
    def running(self) -> list[Node]:
        """Brokers that run and are not paused."""
        return [node for node in self.nodes.values() if node.is_running and not node.is_paused]

    def connect(self, **options: Any) -> Any:
        """A client of this cluster; options as of `quivermq.connect`."""
        return quivermq.connect(
            self.servers, **{"tls": self.tls_ca or False, "token": "", **options}
        )

    @property
    def tls_ca(self) -> str:
        """The file by which clients trust its brokers; "": they have no TLS."""
        if not self._settings.get("tls_cert"):
            return ""
        return str(self._settings.get("tls_ca") or "system")

    def wait_ready(self, timeout: float = READY_S) -> None:
        """Wait until all running brokers know each other, and a leader of every partition."""
        self.wait_until(self._is_ready, "not all brokers are ready", timeout)

    def _is_ready(self) -> bool:
        return all(self._knows_all(node) for node in self.running)

    def _knows_all(self, node: Node) -> bool:
        with self.direct(node.id) as broker:
            found = broker.ask(proto.Request(map=proto.MapQuery())).response.map
        alive = {broker.id for broker in found.brokers if broker.alive}
        return (
            bool(found.cluster_id and found.leader)
            and alive >= {node.id for node in self.running}
            and found.leader in alive
            and all(p.leader in alive for topic in found.topics for p in topic.partitions)
        )

    def leader(self, topic: str, partition: int = 0, timeout: float = READY_S) -> int:
        """The node that leads a partition, in the newest term, by its own account."""
        found = 0

        def look() -> bool:
            nonlocal found
            claims = [
                (seen.term, node.id)
                for node in self.running
                if (seen := self.describe(node.id, topic, partition)) and seen.leader == node.id
            ]
            found = max(claims)[1] if claims else 0
            return found > 0

        self.wait_until(look, f"{topic}/{partition} has no leader", timeout)
        return found

    def describe(
        self, node: int, topic: str, partition: int = 0
    ) -> proto.PartitionDescription | None:
        """A partition as one node sees it; None if it does not have it, or does not answer."""
        name = proto.PartitionName(topic=topic, partition=partition)
        request = proto.Request(describe_partitions=proto.DescribePartitions(partitions=[name]))
        try:
            with self.direct(node) as broker:
                answer = broker.ask(request).response.partitions_described
        except QuiverError:
            return None
        return answer.partitions[0] if answer.partitions else None

    def direct(self, node: int, timeout: float = _ASK_S) -> DirectConnection:
        """A plain connection to one node, past all proxies."""
        return DirectConnection(self.nodes[node].address, timeout, tls=self.tls_ca or False)

    def wait_until(
        self, condition: Callable[[], bool], failure: str, timeout: float = READY_S
    ) -> None:
        """Wait for a condition; raises with the brokers' logs after the timeout."""
        deadline = time.monotonic() + timeout
        trouble = ""
        while True:
            try:
                if condition():
                    return
            except QuiverError as error:
                trouble = f": {error.code}: {error}"
            if time.monotonic() > deadline:
                raise ClusterError(f"{failure} after {timeout:.0f} s{trouble}\n{self.log_tails()}")
            time.sleep(_LOOK_AGAIN_S)

    def log_tails(self) -> str:
        """The end of every broker's log."""
        return "\n".join(node.log_tail() for node in (*self.nodes.values(), *self.gateways))

    @contextmanager
    def paused(self, node: int) -> Iterator[None]:
        """Pause a node for the duration of a `with`."""
        self.nodes[node].pause()
        try:
            yield
        finally:
            self.nodes[node].resume()


class HeldPort:
    """A port of the loopback interface that stays ours while brokers on it are killed and started.

    Linux lets a second socket listen on an address that another one has bound without listening, if
    both allow reuse, and gives that port to no other listener and no outgoing connection. Elsewhere
    the port is only known to have been free.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]
        if not _CAN_HOLD:
            self._socket.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.number}"

    def release(self) -> None:
        """Let others have it."""
        self._socket.close()
