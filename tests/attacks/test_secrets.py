"""Secrets are compared in constant time, and the time of a refusal tells nothing of a token."""

import ast
import hmac
import re
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quivermq.cluster import digest_of
from quivermq.errors import Unauthenticated
from quivermq.node.cluster_secret import ClusterSecret
from tests.node.test_access_control import ADMIN, BOB, Stage
from tests.transports.stage import on_loop

SRC = Path(__file__).parents[2] / "src" / "quivermq"
SECRET = re.compile(r"(^|_)(token|digest|proof|secret|password)s?$")
WORDS = re.compile(
    r"[!=]=.*(token|digest|proof|secret|password)|(token|digest|proof|secret).*[!=]="
)
"""What a line must have for its file to be looked at."""
ROOMS = ("node", "transports", "cluster", "wire", "settings.py")


def compared(tree: ast.AST) -> Iterator[str]:
    """Comparisons of something secret by `==` or `!=`, which end at the first difference."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare):
            continue
        if not any(isinstance(each, ast.Eq | ast.NotEq) for each in node.ops):
            continue
        sides = [node.left, *node.comparators]
        # Whether there is one at all is no secret.
        if any(isinstance(side, ast.Constant) for side in sides):
            continue
        names = [getattr(side, "attr", getattr(side, "id", "")) for side in sides]
        if any(SECRET.search(name) for name in names):
            yield f"{node.lineno}: {ast.unparse(node)}"


def test_nothing_secret_is_compared_by_its_first_difference() -> None:
    found = []
    for room in ROOMS:
        files = [SRC / room] if room.endswith(".py") else sorted((SRC / room).rglob("*.py"))
        for text, file in ((file.read_text(), file) for file in files):
            if WORDS.search(text):
                found += [f"{file.name}:{each}" for each in compared(ast.parse(text))]
    assert found == []
    # It would be noticed.
    assert list(compared(ast.parse("if user.digest == digest_of(token): pass")))
    assert list(compared(ast.parse("ok = proof != self._expected")))


@on_loop
async def test_tokens_are_looked_up_by_a_digest_of_all_of_their_characters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[object, object]] = []
    real = hmac.compare_digest

    def compare(one: Any, other: Any) -> bool:
        seen.append((one, other))
        return real(one, other)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    stage = Stage(ADMIN, BOB)
    assert (await stage.sign_in("bob-token")).name == "bob"
    assert seen == [(BOB.digest, digest_of("bob-token"))]
    # Of a token that is right but for its end, the digest shares no beginning with the right one:
    # a search that ends early ends at once, wherever the tokens differ.
    for near in ("bob-tokem", "bob-toke", "bob-token0"):
        with pytest.raises(Unauthenticated):
            await stage.sign_in(near)
        assert digest_of(near)[:4] != BOB.digest[:4], near
    assert len(seen) == 1


def test_a_right_beginning_of_a_token_takes_no_longer() -> None:
    stage = Stage(ADMIN, BOB)
    right = "bob-token"
    times: dict[str, list[int]] = {"near": [], "far": []}
    for number in range(4_000):
        kind, token = ("near", right[:-1]) if number % 2 else ("far", "x" * (len(right) - 1))
        began = time.perf_counter_ns()
        assert stage.access._find(token) is None
        times[kind].append(time.perf_counter_ns() - began)
    near, far = (statistics.median(times[kind]) for kind in ("near", "far"))
    # The same work; a tenth of it would be hundreds of comparisons of a character.
    assert 0.8 < near / far < 1.25, (near, far)


def test_proofs_of_brokers_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hmac, "compare_digest", lambda one, other: one == other == b"asked")
    secret = ClusterSecret(b"s" * 16, b"peer")
    challenge = secret.challenge(bytes(32))
    challenge._expected = b"asked"
    # Nothing else decides.
    challenge.check(b"asked")
    with pytest.raises(Unauthenticated):
        challenge.check(b"other")
