"""The secret of a cluster: what proves it, and what does not."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from quivermq.errors import InvalidRequest, Unauthenticated
from quivermq.node.cluster_secret import (
    CLIENT_LISTENER,
    NONCE_BYTES,
    PEER_LISTENER,
    ClusterSecret,
    read_secret,
)
from quivermq.settings import BrokerSettings

OURS = ClusterSecret(b"our secret", PEER_LISTENER)
THEIRS = ClusterSecret(b"their secret", PEER_LISTENER)
ELSEWHERE = ClusterSecret(b"our secret", CLIENT_LISTENER)
NONCE = bytes(NONCE_BYTES)


def test_two_brokers_with_the_secret_prove_it_to_each_other() -> None:
    challenge = OURS.challenge(NONCE)
    challenge.check(OURS.proof_of_dialler(NONCE, challenge.nonce, challenge.proof))


@pytest.mark.parametrize("other", [THEIRS, ELSEWHERE])
def test_another_secret_or_another_listener_proves_nothing(other: ClusterSecret) -> None:
    challenge, theirs = OURS.challenge(NONCE), other.challenge(NONCE)
    with pytest.raises(Unauthenticated):
        OURS.proof_of_dialler(NONCE, theirs.nonce, theirs.proof)
    with pytest.raises(Unauthenticated):
        challenge.check(other._proof(b"dialler", NONCE, challenge.nonce))


def test_a_proof_cannot_be_sent_back_or_used_again() -> None:
    challenge, later = OURS.challenge(NONCE), OURS.challenge(NONCE)
    assert challenge.nonce != later.nonce
    proof = OURS.proof_of_dialler(NONCE, challenge.nonce, challenge.proof)
    for wrong in (challenge.proof, later.proof, b"", proof[:-1], proof + b"\0"):
        with pytest.raises(Unauthenticated):
            challenge.check(wrong)
    with pytest.raises(Unauthenticated):
        later.check(proof)
    with pytest.raises(Unauthenticated):
        OURS.proof_of_dialler(NONCE, challenge.nonce, proof)
    with pytest.raises(Unauthenticated):
        OURS.proof_of_dialler(NONCE, b"", b"")


@pytest.mark.parametrize("nonce", [b"", b"x", bytes(NONCE_BYTES + 1)])
def test_a_nonce_of_another_length_is_refused(nonce: bytes) -> None:
    with pytest.raises(InvalidRequest):
        OURS.challenge(nonce)


def test_the_secret_comes_from_the_setting_or_a_file(tmp_path: Path) -> None:
    place = tmp_path / "secret"
    place.write_text("0123456789abcdef\n")
    assert read_secret(BrokerSettings(cluster_secret_file=str(place))) == b"0123456789abcdef"
    given = BrokerSettings(cluster_secret="0123456789abcdef")
    assert read_secret(given) == b"0123456789abcdef"
    assert "0123456789abcdef" not in repr(given)
    assert read_secret(BrokerSettings()) == b""
    alone = BrokerSettings(users=True)
    assert len(read_secret(alone)) >= 32
    assert read_secret(alone) != read_secret(alone), "one that nobody knows"


def test_a_secret_that_is_none_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    for wrong in (
        BrokerSettings(cluster_secret="short"),
        BrokerSettings(cluster_secret_file=str(empty)),
        BrokerSettings(cluster_secret_file=str(tmp_path / "missing")),
        BrokerSettings(cluster_secret="0123456789abcdef", cluster_secret_file="x"),
    ):
        with pytest.raises(InvalidRequest):
            read_secret(wrong)
    for several in ({"peers": {2: "b:1"}}, {"join": "b:1"}):
        with pytest.raises(ValidationError, match="cluster_secret"):
            BrokerSettings(users=True, **several)
