"""Ports that stay ours while the process that listens on them is killed and started again.

Linux lets a second socket listen on an address that another one has bound and does not listen on,
if both allow reuse, and gives that port to nobody else: neither to a listener that asks for any
port nor to an outgoing connection. Elsewhere the port is only known to have been free.
"""

import socket
import sys

_CAN_HOLD = sys.platform == "linux"


class HeldPort:
    """A port of the loopback interface."""

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
