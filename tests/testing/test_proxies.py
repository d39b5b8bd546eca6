"""Links: what gets through when, and what both ends notice of it."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from quivermq.testing.cluster import ProxiedLink, Proxies


@contextmanager
def echo() -> Iterator[ProxiedLink]:
    """A link to somebody who answers with what they hear."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                end, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(end,), daemon=True).start()

    def answer(end: socket.socket) -> None:
        with end:
            try:
                while data := end.recv(100):
                    heard.append(data)
                    end.sendall(data)
            except OSError:
                return

    heard: list[bytes] = []
    thread = threading.Thread(target=serve)
    thread.start()
    proxies = Proxies()
    link = proxies.link("{}:{}".format(*listener.getsockname()))
    link.heard = heard  # type: ignore[attr-defined]
    try:
        yield link
    finally:
        proxies.close()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


@contextmanager
def caller(link: ProxiedLink) -> Iterator[socket.socket]:
    host, port = link.address.split(":")
    with socket.create_connection((host, int(port)), timeout=5.0) as end:
        yield end


def is_silent(end: socket.socket) -> bool:
    end.settimeout(0.1)
    try:
        end.recv(100)
    except TimeoutError:
        return True
    finally:
        end.settimeout(5.0)
    return False


def is_gone(end: socket.socket) -> bool:
    try:
        return end.recv(100) == b""
    except ConnectionResetError:
        return True


def test_bytes_get_through_both_ways() -> None:
    with echo() as link, caller(link) as end:
        end.sendall(b"hello")
        assert end.recv(100) == b"hello"


def test_a_cut_link_is_silent_and_its_connections_are_gone_once_healed() -> None:
    with echo() as link, caller(link) as end:
        end.sendall(b"before")
        assert end.recv(100) == b"before"
        link.cut()
        end.sendall(b"lost")
        assert is_silent(end)
        link.heal()
        assert is_gone(end)
        assert link.heard == [b"before"]  # type: ignore[attr-defined]
        with caller(link) as again:
            again.sendall(b"again")
            assert again.recv(100) == b"again"


def test_a_clogged_link_delivers_late_what_it_held_up() -> None:
    with echo() as link, caller(link) as end:
        link.clog()
        end.sendall(b"late")
        assert is_silent(end)
        link.heal()
        assert end.recv(100) == b"late"


def test_answers_can_be_lost_alone() -> None:
    with echo() as link, caller(link) as end:
        link.cut_answers()
        end.sendall(b"heard")
        assert is_silent(end)
        assert link.heard == [b"heard"]  # type: ignore[attr-defined]


def test_a_severed_link_breaks_connections_and_refuses_more_until_healed() -> None:
    with echo() as link, caller(link) as end:
        end.sendall(b"before")
        assert end.recv(100) == b"before"
        link.sever()
        assert is_gone(end)
        with caller(link) as refused:
            assert is_gone(refused)
        link.heal()
        with caller(link) as again:
            again.sendall(b"again")
            assert again.recv(100) == b"again"


def test_a_delayed_link_takes_its_time_each_way() -> None:
    with echo() as link, caller(link) as end:
        link.delay(0.15)
        end.sendall(b"slow")
        assert is_silent(end)
        assert end.recv(100) == b"slow"
