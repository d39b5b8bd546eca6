"""The client's side of TLS: a context out of what a user gives, and failures in words.

A context checks the broker's certificate against a CA, its host name, and takes TLS 1.2 at least.
There is no way here to switch these checks off: `tls` may be a context of the user's own.
"""

import os
import ssl
from pathlib import Path
from typing import Final, TypeAlias

from quivermq.errors import InvalidRequest

TLS_CA_VARIABLE: Final = "QUIVER_TLS_CA"
SYSTEM: Final = "system"
"""Instead of a file: the CAs that the system trusts."""

ClientTls: TypeAlias = "str | os.PathLike[str] | bool | ssl.SSLContext | None"
"""A file with CA certificates; True: the CAs of the system; False: no TLS; a context as it is;
None: as the environment variable says, else no TLS."""

_NOT_TLS: Final = {
    "WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST",
}  # fmt: skip
"""How OpenSSL calls it when what arrives is no TLS."""


def client_context(tls: ClientTls) -> ssl.SSLContext | None:
    """The context to connect with; None: without TLS. Raises `InvalidRequest` for a wrong file."""
    if tls is None:
        tls = os.environ.get(TLS_CA_VARIABLE) or False
    if isinstance(tls, ssl.SSLContext):
        return tls
    if isinstance(tls, bool):
        return trusting(None) if tls else None
    if not isinstance(tls, str | os.PathLike):
        raise InvalidRequest(
            "tls is a file with the CA's certificate, True for the CAs of the system, or an "
            f"ssl.SSLContext, not {type(tls).__name__}"
        )
    return trusting(None if tls == SYSTEM else Path(tls))


def trusting(authorities: Path | None) -> ssl.SSLContext:
    """A context that accepts certificates of these CAs, or of those of the system."""
    try:
        context = ssl.create_default_context(cafile=authorities)
    except ssl.SSLError as error:
        raise InvalidRequest(
            f"{authorities} holds no CA certificate in PEM format: name the file ca.pem of whoever "
            "made the brokers' certificates"
        ) from error
    except OSError as error:
        raise InvalidRequest(
            f"cannot read the CA certificate {authorities}: {error.strerror or error}"
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def explain(error: OSError) -> str:
    """Why a connection was not made or is lost, in words that name what to do about TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLEOFError):
        return "TLS: it closed the connection during the handshake: does it expect TLS?"
    if not isinstance(error, ssl.SSLError):
        # asyncio writes the address where the system's words belong.
        known = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        return known or str(error) or "the connection was lost"
    reason = error.reason or ""
    if reason in _NOT_TLS:
        return "it does not speak TLS: connect without tls, or give the broker a certificate"
    if "CERTIFICATE_REQUIRED" in reason:
        return "TLS: it wants a certificate of this side, and got none"
    if "ALERT" in reason:
        return f"TLS: it refuses this side: {_words(reason)}"
    return f"TLS: {_words(reason) or error}"


def _words(reason: str) -> str:
    return reason.lower().replace("_", " ")
