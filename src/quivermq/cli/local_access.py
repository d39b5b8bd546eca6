"""Certificates, a secret and an admin for a cluster on this machine: `quiver up --secure`.

All of it is kept in the folder `tls` of the data directory, where only its owner reads: whoever
reads that can do everything, as with the data itself.
"""

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from quivermq.cli.options import connect
from quivermq.errors import InvalidRequest

_ADMIN: Final = "admin"
_TOKEN_FILE: Final = "admin-token"  # noqa: S105  (a name)
_SECRET_FILE: Final = "cluster-secret"  # noqa: S105


@dataclass(slots=True)
class LocalAccess:
    """How the brokers of a cluster are protected, and how clients get in."""

    flags: Sequence[str] = ()
    """Of each broker."""
    folder: Path | None = None
    """Of the files; None: nothing is protected."""
    token: str = ""
    """The admin's; empty before there is one."""

    @property
    def tls_ca(self) -> str:
        return str(self.folder / "ca.pem") if self.folder else ""

    @property
    def token_file(self) -> str:
        return str(self.folder / _TOKEN_FILE) if self.folder else ""

    @property
    def options(self) -> str:
        """Of a client's commands."""
        return f" --tls-ca {self.tls_ca}" if self.folder else ""

    def refusal(self) -> InvalidRequest:
        """Why the brokers let this command in no more."""
        return InvalidRequest(
            f"this cluster has an admin whose token is not in {self.token_file}: put it there, or "
            "start the cluster without --secure, and run `quiver user add admin --new-token`"
        )

    def make_admin(self, servers: str) -> bool:
        """Make the first user, unless there is one; returns whether its token is a new one."""
        if self.folder is None or self.token:
            return False
        with connect(servers, timeout=10.0, tls=self.tls_ca, token="") as client:
            exists = any(user.name == _ADMIN for user in client.users.all())
            token = client.users.add(_ADMIN, new_token=exists)
            client.users.grant(_ADMIN, "admin")
        _write_secret(Path(self.token_file), token)
        self.token = token
        return True


def protect(data_dir: Path) -> LocalAccess:
    """Certificates and a secret for the brokers of a directory; what is there is used again."""
    # Not at the top: most clusters need none.
    from quivermq.cli.cert import tls_flags  # noqa: PLC0415
    from quivermq.tls import make_certificates  # noqa: PLC0415

    folder = data_dir / "tls"
    make_certificates(folder)
    secret, token = folder / _SECRET_FILE, folder / _TOKEN_FILE
    if not secret.exists():
        _write_secret(secret, secrets.token_hex(32))
    flags = [*tls_flags(folder), "--users", "--cluster-secret-file", str(secret)]
    return LocalAccess(flags, folder, token.read_text().strip() if token.exists() else "")


def _write_secret(file: Path, text: str) -> None:
    """Write it so that only the owner reads it, from the first moment on."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(f"{text}\n")
