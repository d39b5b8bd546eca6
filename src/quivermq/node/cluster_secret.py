"""The secret that the brokers of a cluster share, and proofs that another broker knows it.

Each side draws 32 random bytes. The proof is an HMAC over both, over who of the two proves, and for
which listener: so no proof can be repeated, sent back to whoever made it, or used at another door.
The secret itself never travels.
"""

import hmac
import secrets
from pathlib import Path
from typing import Final

from quivermq.errors import InvalidRequest, Unauthenticated
from quivermq.settings import BrokerSettings
from quivermq.wire import proto

NONCE_BYTES: Final = 32
_SECRET_BYTES_MIN: Final = 16
CLIENT_LISTENER: Final = b"client"
PEER_LISTENER: Final = b"peer"
_DIALLER: Final = b"dialler"
_LISTENER: Final = b"listener"


class ClusterSecret:
    """Makes and checks proofs for one listener of a broker."""

    def __init__(self, secret: bytes, listener: bytes) -> None:
        self._secret = secret
        self._listener = listener

    def _proof(self, role: bytes, dialled: bytes, answered: bytes) -> bytes:
        # Nonces have one length, and the words none of the other's: no two inputs are the same.
        text = b"\0".join((b"quivermq broker", self._listener, role, dialled + answered))
        return hmac.digest(self._secret, text, "sha256")

    def challenge(self, nonce: bytes) -> "Challenge":
        """The answer to a broker that dialled with a nonce."""
        if len(nonce) != NONCE_BYTES:
            raise InvalidRequest(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
        return Challenge(self, nonce, secrets.token_bytes(NONCE_BYTES))

    def proof_of_dialler(self, nonce: bytes, challenge: bytes, proof: bytes) -> bytes:
        """The answer of the broker that dialled to a challenge; raises `Unauthenticated` if the
        other does not know the secret."""
        if len(challenge) != NONCE_BYTES or not hmac.compare_digest(
            proof, self._proof(_LISTENER, nonce, challenge)
        ):
            raise Unauthenticated("it does not know the secret of this cluster (cluster_secret)")
        return self._proof(_DIALLER, nonce, challenge)


class Challenge:
    """A broker dialled, and is to prove that it knows the secret."""

    def __init__(self, secret: ClusterSecret, dialled: bytes, nonce: bytes) -> None:
        self.nonce = nonce
        self.proof = secret._proof(_LISTENER, dialled, nonce)  # noqa: SLF001 - of this module
        self._expected = secret._proof(_DIALLER, dialled, nonce)  # noqa: SLF001

    def check(self, proof: bytes) -> None:
        """Raise `Unauthenticated` unless the other knows the secret."""
        if not hmac.compare_digest(proof, self._expected):
            raise Unauthenticated("it does not know the secret of this cluster (cluster_secret)")


class BrokerProof:
    """The handshake of a broker that dials another one where clients connect."""

    def __init__(self, secret: ClusterSecret) -> None:
        self._secret = secret
        self.nonce = secrets.token_bytes(NONCE_BYTES)

    def answer(self, response: proto.Response) -> proto.Prove:
        """The answer to a challenge; raises `Unauthenticated` if it is none, or not of a broker."""
        challenge = response.challenge
        proof = self._secret.proof_of_dialler(self.nonce, challenge.nonce, challenge.proof)
        return proto.Prove(proof=proof)


def read_secret(settings: BrokerSettings) -> bytes:
    """The secret of the cluster; b"" if there is none.

    A broker with users and without a secret draws one that only it knows: it is a cluster of one.
    """
    text = settings.cluster_secret.get_secret_value()
    if text and settings.cluster_secret_file:
        raise InvalidRequest("cluster_secret and cluster_secret_file are both set: set only one")
    if settings.cluster_secret_file:
        try:
            text = Path(settings.cluster_secret_file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(
                f"cluster_secret_file {settings.cluster_secret_file} cannot be read: {error}"
            ) from error
    elif not text and settings.users:
        text = secrets.token_hex(NONCE_BYTES)
    if (text or settings.cluster_secret_file) and len(text.encode()) < _SECRET_BYTES_MIN:
        raise InvalidRequest(
            f"the secret of a cluster has at least {_SECRET_BYTES_MIN} bytes: make one with "
            "`openssl rand -hex 32`"
        )
    return text.encode()
