"""The broker's side of TLS: contexts for its listeners and links, reloaded when the files change.

A change makes new contexts. Connections that are open keep theirs; every handshake that begins
later uses the new ones. Files that do not fit together change nothing: the broker goes on with what
it has, and logs what is wrong.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, Self

from quivermq.addresses import split_address
from quivermq.errors import BrokenInvariant, InvalidRequest
from quivermq.settings import BrokerSettings
from quivermq.tls.client_contexts import trusting

logger = logging.getLogger("quivermq.tls")

_WARN_BEFORE_S: Final = 14 * 86_400.0
_WARN_AGAIN_S: Final = 86_400.0
_EXPIRED, _NOT_YET_VALID = 10, 9
"""Codes of OpenSSL."""
_ROUND_TRIPS: Final = 10


class Pem(NamedTuple):
    """The contents of the files, as gRPC takes them."""

    chain: bytes
    key: bytes
    authorities: bytes | None


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files that the settings name."""

    certificate: Path
    key: Path
    authorities: Path | None
    mutual: bool
    """Brokers show each other certificates of `authorities`."""

    def read(self) -> Pem:
        return Pem(
            _read("tls_cert", self.certificate),
            _read("tls_key", self.key),
            None if self.authorities is None else _read("tls_ca", self.authorities),
        )

    def stamps(self) -> list[Any]:
        """Differ once a file was changed or replaced."""
        return [_stamp(path) for path in (self.certificate, self.key, self.authorities) if path]


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts of one state of the files."""

    clients: ssl.SSLContext
    """Of the listener for clients. It asks for certificates, if brokers have them, but needs none:
    so a broker that forwards a request can be told from a client."""
    http: ssl.SSLContext
    peers: ssl.SSLContext | None
    """Of the listener for brokers; None: these connections are not encrypted."""
    dialer: ssl.SSLContext
    """Of connections to other brokers."""
    pem: Pem
    expires_s: float
    """Seconds since 1970."""


class BrokerTls:
    """The contexts of a broker, always the latest that fit."""

    def __init__(self, files: TlsFiles, look_s: float = 2.0) -> None:
        """Raises `InvalidRequest` if the files do not fit."""
        self._files = files
        self._look_s = look_s
        self._hosts: dict[str, str] = {}
        self._stamps = files.stamps()
        self._contexts = load(files)
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._warned_at = float("-inf")
        self.on_loaded: Callable[[str, str], None] = lambda *_: None
        """Told of files that were read: a kind of event, and whether and why they are in use."""
        self.http = _server(files)
        """One context for good, for a listener that takes no other: it turns to the latest one in
        each handshake."""
        self.http.sni_callback = self._turn_to_latest

    @classmethod
    def of(cls, settings: BrokerSettings) -> Self | None:
        """As the settings say; None: without TLS."""
        if settings.peer_tls and not (settings.tls_cert and settings.tls_ca):
            raise InvalidRequest("peer_tls needs tls_cert, tls_key and tls_ca: set them too")
        if settings.tls_key and not settings.tls_cert:
            raise InvalidRequest("tls_key is the key of tls_cert: set both")
        if not settings.tls_cert:
            return None
        files = TlsFiles(
            certificate=Path(settings.tls_cert),
            key=Path(settings.tls_key or settings.tls_cert),
            authorities=Path(settings.tls_ca) if settings.tls_ca else None,
            mutual=settings.peer_tls,
        )
        return cls(files, settings.tls_reload_ms / 1000)

    @property
    def clients(self) -> ssl.SSLContext:
        return self._contexts.clients

    @property
    def is_mutual(self) -> bool:
        """Whether brokers show each other certificates."""
        return self._files.mutual

    @property
    def peers(self) -> ssl.SSLContext:
        if self._contexts.peers is None:
            raise BrokenInvariant("the context of the peer listener was asked for without peer_tls")
        return self._contexts.peers

    @property
    def peer_dialer(self) -> ssl.SSLContext | None:
        """Of links to other brokers; None: these are not encrypted."""
        return self._contexts.dialer if self.is_mutual else None

    @property
    def dialer(self) -> ssl.SSLContext:
        """Of connections to the client listeners of other brokers."""
        return self._contexts.dialer

    @property
    def pem(self) -> Pem:
        """For `grpc.dynamic_ssl_server_credentials`, which asks again at each handshake."""
        return self._contexts.pem

    def _turn_to_latest(
        self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _: ssl.SSLContext
    ) -> None:
        connection.context = self._contexts.http

    def check_host(self, address: str, setting: str) -> None:
        """Raise `InvalidRequest` unless the certificate names the host of an address that others
        are told; from here on also if one is loaded that does not. `setting` would say another."""
        host, _ = split_address(address)
        check_host(self._files, self._contexts, host, setting)
        self._hosts[host] = setting

    # Reloading.

    def start(self) -> None:
        """Begin to look at the files."""
        self._task = asyncio.create_task(self._watch(), name="tls")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def reload(self) -> None:
        """Load the files at once, changed or not."""
        self._asked.set()

    async def _watch(self) -> None:
        tried, seen = self._stamps, self._stamps
        while True:
            self._warn_of_expiry()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._look_s):
                    await self._asked.wait()
            is_asked = self._asked.is_set()
            self._asked.clear()
            stamps = await asyncio.to_thread(self._files.stamps)
            # Twice the same: the certificate may be replaced a moment before its key.
            is_settled, seen = stamps == seen, stamps
            if is_asked or (is_settled and stamps != tried):
                tried = stamps
                await self._load()

    async def _load(self) -> None:
        try:
            self._contexts = await asyncio.to_thread(load, self._files, self._hosts)
        except InvalidRequest as error:
            logger.error("the certificates stay as they were: %s", error)  # noqa: TRY400
            self.on_loaded("certificates_refused", f"the certificates stay as they were: {error}")
        except Exception:
            logger.exception("the certificates stay as they were")
        else:
            self._warned_at = float("-inf")
            until = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self._contexts.expires_s))
            text = f"certificates are loaded, valid until {until} UTC"
            logger.info("%s", text)
            self.on_loaded("certificates_loaded", text)

    @property
    def expires_s(self) -> float:
        """When the certificate expires: seconds since 1970."""
        return self._contexts.expires_s

    def _warn_of_expiry(self) -> None:
        left_s, now = self._contexts.expires_s - time.time(), time.monotonic()
        if left_s < _WARN_BEFORE_S and now - self._warned_at > _WARN_AGAIN_S:
            self._warned_at = now
            when = f"expires in {left_s / 86_400:.1f} days" if left_s > 0 else "has expired"
            text = "the certificate %s %s: replace the file, the broker loads it"
            logger.warning(text, self._files.certificate, when)


class HasTls(Protocol):
    """A transport, as far as is needed here."""

    def get_extra_info(self, name: str) -> Any: ...


def shows_broker(transport: HasTls) -> bool:
    """Whether the other end of a connection that came in has shown a broker's certificate: one of
    `tls_ca`, which the handshake checked, that may be a server's. A client's may not."""
    connection: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    if connection is None or connection.context.verify_mode == ssl.CERT_NONE:
        return False
    certificate = connection.getpeercert(binary_form=True)
    return certificate is not None and _reader()(certificate)


def _reader() -> Callable[[bytes], bool]:
    """Imported by brokers that need it, before they serve: it takes a tenth of a second."""
    from quivermq.tls.certificates import is_for_servers  # noqa: PLC0415

    return is_for_servers


def load(files: TlsFiles, hosts: Mapping[str, str] = MappingProxyType({})) -> Contexts:
    """The contexts of the files as they are; raises `InvalidRequest` if these do not fit, or not to
    the hosts, each with the setting that names it."""
    pem = files.read()
    clients, http, dialer = _server(files), _server(files), trusting(files.authorities)
    _load_chain(dialer, files)
    peers = None
    if files.mutual:
        _reader()
        for context in (clients, peers := _server(files)):
            context.load_verify_locations(cafile=files.authorities)
        clients.verify_mode, peers.verify_mode = ssl.CERT_OPTIONAL, ssl.CERT_REQUIRED
    expires_s = _check(files, peers or http)
    if files.read() != pem:
        raise InvalidRequest(f"{files.certificate} or its key changed while it was read")
    contexts = Contexts(clients, http, peers, dialer, pem, expires_s)
    for host, setting in hosts.items():
        check_host(files, contexts, host, setting)
    return contexts


def _server(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # The handshake of a client that may renegotiate costs it nothing and the broker much.
    context.options |= ssl.OP_NO_RENEGOTIATION
    _load_chain(context, files)
    return context


def _load_chain(context: ssl.SSLContext, files: TlsFiles) -> None:
    try:
        # Without a password it would ask for one at the terminal.
        context.load_cert_chain(files.certificate, files.key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise InvalidRequest(
                f"tls_key: {files.key} is not the key of the certificate {files.certificate}: name "
                "the two files that were made together"
            ) from error
        raise InvalidRequest(
            f"tls_cert: {files.certificate} and {files.key} must hold a certificate and its key in "
            "PEM format, the key without a password"
        ) from error
    except OSError as error:
        raise InvalidRequest(
            f"tls_cert: cannot read {files.certificate} or {files.key}: {error.strerror or error}"
        ) from error


def check_host(files: TlsFiles, contexts: Contexts, host: str, setting: str) -> None:
    try:
        shake_hands(_checker(files), contexts.http, host)
    except ssl.SSLError as error:
        raise InvalidRequest(
            f"tls_cert: {files.certificate} does not name {host}, where others are told to connect "
            f"({getattr(error, 'verify_message', '') or error.reason}): get one with this name, as "
            f"from `quiver cert --host {host}`, or set {setting} to a name that it has"
        ) from error


def _checker(files: TlsFiles) -> ssl.SSLContext:
    """The context of a client that trusts this broker, if its certificate is valid."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if files.authorities is None:
        # Which CA it is of is the clients' business; whether it is valid is not.
        client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(cafile=files.authorities or files.certificate)
    _load_chain(client, files)
    return client


def _check(files: TlsFiles, server: ssl.SSLContext) -> float:
    """Shake hands with oneself, as any other broker would; returns when the certificate expires."""
    try:
        certificate = shake_hands(_checker(files), server)
    except ssl.SSLCertVerificationError as error:
        raise InvalidRequest(_refusal(files, error)) from error
    except ssl.SSLError as error:
        raise InvalidRequest(
            f"tls_cert: no handshake succeeds with {files.certificate}: {error.reason or error}"
        ) from error
    return float(ssl.cert_time_to_seconds(certificate["notAfter"]))


def _refusal(files: TlsFiles, error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code == _EXPIRED:
        return f"tls_cert: {files.certificate} has expired, or its CA has: get a new one"
    if error.verify_code == _NOT_YET_VALID:
        return f"tls_cert: {files.certificate} is not valid yet: look at the clock of this machine"
    return (
        f"tls_cert: {files.certificate} is not accepted by {files.authorities or 'itself'}: "
        f"{error.verify_message}; brokers need a certificate of the CA in tls_ca, for servers and, "
        "with peer_tls, for clients"
    )


def shake_hands(
    client: ssl.SSLContext, server: ssl.SSLContext, host: str | None = None
) -> dict[str, Any]:
    """A handshake in memory; the server's certificate. Raises `ssl.SSLError`."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client.check_hostname = host is not None
    ends = (
        client.wrap_bio(back, there, server_hostname=host),
        server.wrap_bio(there, back, server_side=True),
    )
    for _ in range(_ROUND_TRIPS):
        waiting = False
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                waiting = True
        if not waiting:
            return ends[0].getpeercert() or {}
    raise ssl.SSLError("the handshake does not end")


def _read(setting: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise InvalidRequest(
            f"{setting}: there is no file {path}; `quiver cert --out DIR` makes certificates for "
            "development"
        ) from error
    except OSError as error:
        raise InvalidRequest(f"{setting}: cannot read {path}: {error.strerror}") from error


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
