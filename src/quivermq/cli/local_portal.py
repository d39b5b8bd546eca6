"""Starts the portal of a local cluster as a process, a `quiver portal`; it ends with its parent."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from quivermq.cli.local_access import LocalAccess
from quivermq.cli.local_brokers import free_address

_PORT: Final = 8080
_STOP_SECONDS_MAX: Final = 5.0


@dataclass(slots=True)
class LocalPortal:
    """The portal of a local cluster; as a context manager, it starts and stops it."""

    servers: str
    access: LocalAccess
    folder: Path
    any_port: bool = False
    address: str = ""
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def __enter__(self) -> "LocalPortal":
        self.address = free_address(0 if self.any_port else _PORT)
        command = [
            sys.executable, "-m", "quivermq", "portal", "--servers", self.servers,
            "--listen", self.address, "--stop-on-eof",
        ]  # fmt: skip
        # People sign in with tokens of their own.
        environment = {**os.environ, "QUIVER_TOKEN": "", "QUIVER_TLS_CA": self.access.tls_ca}
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  (our own command)
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    @property
    def log_file(self) -> Path:
        return self.folder / "portal.log"

    def exit_message(self) -> str:
        """One line about a portal that ended by itself; empty: it runs."""
        if self._process is None or self._process.poll() is None:
            return ""
        lines = self.log_file.read_text(errors="replace").strip().splitlines()
        self._process = None
        return f"the portal ended, see {self.log_file}" + (f": {lines[-1]}" if lines else "")
