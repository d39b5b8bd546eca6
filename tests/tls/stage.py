"""Certificates of tests: good, expired, foreign, for another host; and settings that name them."""

import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from quivermq.tls import Authority, make_certificates
from quivermq.tls.certificates import LOCAL_HOSTS, SERVER, write_pair


class Certificates:
    """A folder as `quiver cert` makes it."""

    def __init__(self, folder: Path, hosts: Sequence[str] = ()) -> None:
        self.folder = folder
        make_certificates(folder, hosts)

    @property
    def ca(self) -> str:
        return str(self.folder / "ca.pem")

    @property
    def authority(self) -> Authority:
        return Authority.open(self.folder)

    def settings(self, name: str = "server", *, mutual: bool = False) -> dict[str, Any]:
        """Settings of a broker with one of the certificates."""
        return {
            "tls_cert": str(self.folder / f"{name}.pem"),
            "tls_key": str(self.folder / f"{name}.key"),
            "tls_ca": self.ca,
            "peer_tls": mutual,
        }

    def make(
        self, name: str, *, days: float = 30.0, age: timedelta | None = None, **more: Any
    ) -> None:
        """One more certificate, of a broker on this machine; expired, if it is older than valid."""
        begins = None if age is None else datetime.now(UTC) - age
        found = {"hosts": LOCAL_HOSTS, "usages": SERVER, **more}
        pair = self.authority.sign(name, days=days, begins=begins, **found)
        write_pair(self.folder / f"{name}.pem", *pair)

    def client(self, name: str = "") -> ssl.SSLContext:
        """A client's context; with a name, one that shows this certificate."""
        context = ssl.create_default_context(cafile=self.ca)
        if name:
            context.load_cert_chain(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        return context

    def server(self, name: str = "server") -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        return context
