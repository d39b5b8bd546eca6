"""The ports of brokers on this machine."""

import socket
from pathlib import Path

import pytest

from quivermq.cli.local_brokers import plan
from quivermq.errors import InvalidRequest


def ports(tmp_path: Path, count: int) -> list[int]:
    return [
        int(address.rpartition(":")[2])
        for place in plan(count, tmp_path, any_ports=True)
        for address in (place.listen, place.peer_listen, place.http, place.grpc)
    ]


def test_every_broker_gets_ports_of_its_own(tmp_path: Path) -> None:
    assert len(set(ports(tmp_path, 5))) == 20


def test_a_data_directory_keeps_its_ports_and_its_number_of_brokers(tmp_path: Path) -> None:
    before = plan(3, tmp_path, any_ports=True)
    assert plan(3, tmp_path) == before
    with pytest.raises(InvalidRequest, match="holds a cluster of 3: write --nodes 3"):
        plan(1, tmp_path)


def test_a_usual_port_that_is_taken_is_not_chosen(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 7600))
            taken.listen()
        except OSError:
            pass  # another process has the port, which serves as well
        (place,) = plan(1, tmp_path)
    assert place.listen != "127.0.0.1:7600"
