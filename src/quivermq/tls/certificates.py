"""Certificates for development: a CA, and certificates that it signs. Brokers read them as files.

Keys are of the curve P-256: a handshake costs a broker a fifth of what RSA does.
"""

import ipaddress
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from quivermq.errors import InvalidRequest

LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
SERVER: Final = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
"""A broker's certificate: it is also a client, of other brokers."""
CLIENT: Final = (ExtendedKeyUsageOID.CLIENT_AUTH,)
_AUTHORITY_DAYS: Final = 3_650
_CLOCK_ERROR: Final = timedelta(minutes=5)
"""How far the clock of a machine that checks a certificate may be behind."""


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority, with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls, name: str = "QuiverMQ development CA") -> Self:
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        builder = _builder(name, key, key, now - _CLOCK_ERROR, now + timedelta(_AUTHORITY_DAYS))
        builder = builder.issuer_name(_name(name))
        for extension, critical in (
            (x509.BasicConstraints(ca=True, path_length=0), True),
            (_key_usage(signs_certificates=True), True),
        ):
            builder = builder.add_extension(extension, critical)
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The CA whose files are in a folder; made, if it has none."""
        certificate, key = folder / "ca.pem", folder / "ca.key"
        if not certificate.exists() and not key.exists():
            made = cls.create()
            write_key(key, made.key)
            certificate.write_bytes(pem_of(made.certificate))
            return made
        try:
            found = serialization.load_pem_private_key(key.read_bytes(), password=None)
            if not isinstance(found, ec.EllipticCurvePrivateKey):
                raise TypeError("the key is of another kind")
            return cls(x509.load_pem_x509_certificate(certificate.read_bytes()), found)
        except (OSError, ValueError, TypeError) as error:
            raise InvalidRequest(
                f"{folder} holds a CA that cannot be used again ({error}): name another folder, or "
                "delete ca.pem and ca.key there, and give the new ca.pem to all brokers and clients"
            ) from error

    def sign(
        self,
        name: str,
        usages: Sequence[x509.ObjectIdentifier],
        hosts: Iterable[str] = (),
        *,
        days: float = 365.0,
        begins: datetime | None = None,
    ) -> "tuple[x509.Certificate, ec.EllipticCurvePrivateKey]":
        """A certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        begins = begins or datetime.now(UTC) - _CLOCK_ERROR
        ends = min(begins + timedelta(days), self.certificate.not_valid_after_utc)
        builder = _builder(name, key, self.key, begins, ends)
        builder = builder.issuer_name(self.certificate.subject)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        builder = builder.add_extension(_key_usage(signs_certificates=False), True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), False)
        names = [_alternative(host) for host in dict.fromkeys(hosts)]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), False)
        return builder.sign(self.key, hashes.SHA256()), key


def make_certificates(folder: Path, hosts: Sequence[str] = (), days: float = 365.0) -> list[Path]:
    """Write a CA, a server's and a client's certificate with their keys into a folder; returns the
    files. A CA that is there signs again, so that what trusts it need not be told."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = Authority.open(folder)
    write_pair(folder / "server.pem", *authority.sign(
        "QuiverMQ broker", SERVER, [*LOCAL_HOSTS, *hosts], days=days
    ))  # fmt: skip
    write_pair(folder / "client.pem", *authority.sign("QuiverMQ client", CLIENT, days=days))
    names = ("ca", "server", "client")
    return [folder / f"{name}.{kind}" for name in names for kind in ("pem", "key")]


def write_pair(file: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    """Write a certificate to `file`, and its key beside it, as `.key`; each at once."""
    write_key(file.with_suffix(".key"), key)
    half = file.with_name(file.name + ".tmp")
    half.write_bytes(pem_of(certificate))
    half.replace(file)


def write_key(file: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write a key that only its owner can read, from its first byte on."""
    half = file.with_name(file.name + ".tmp")
    half.unlink(missing_ok=True)
    descriptor = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
    half.replace(file)


def pem_of(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def is_for_servers(certificate: bytes) -> bool:
    """Whether a certificate, in DER, may be that of a server: by its extended key usage, and one
    without that may be anything's."""
    try:
        found = x509.load_der_x509_certificate(certificate)
        usages = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return True
    except ValueError:
        return False
    return ExtendedKeyUsageOID.SERVER_AUTH in usages


def _builder(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: ec.EllipticCurvePrivateKey,
    begins: datetime,
    ends: datetime,
) -> x509.CertificateBuilder:
    public = key.public_key()
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), False)
        .add_extension(issuer_id, False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host.encode("idna").decode())
    except (UnicodeError, ValueError) as error:
        raise InvalidRequest(f"{host!r} is no name of a host: {error}") from error
