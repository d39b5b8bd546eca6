"""Callers: the user behind a connection, where it comes from, and what it may do at this moment.

A transport makes one `Caller` for each connection, session or HTTP request, by
`AccessControl.sign_in`, and gives it to the `Service` with every request.
"""

from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import Final

from quivermq.cluster import ADMIN, CONSUME, PRODUCE, Grant, UserRecord
from quivermq.errors import Overloaded, QuiverError, Unauthenticated
from quivermq.node.permissions import Scope, WantedGrant
from quivermq.token_bucket import Overdraft, TokenBucket

_DECISIONS_MAX: Final = 1_000
"""Of one user; then they are made again."""


class Allowance:
    """How much of this broker one user may take in a second; 0: no limit."""

    def __init__(self, requests: int, bytes_: int, now_s: float) -> None:
        self._requests = TokenBucket(requests, requests, now_s) if requests else None
        self._bytes = Overdraft(bytes_, bytes_, now_s) if bytes_ else None

    def admit(self, size: int, now_s: float) -> None:
        """Count a request of so many bytes; raises `Overloaded` if it comes too early."""
        if self._bytes is not None and (owed_s := self._bytes.owed_s(now_s)):
            raise Overloaded(
                f"this user has sent or received too many bytes; try again in {owed_s:.1f} s"
            )
        if self._requests is not None and not self._requests.take(1, now_s):
            raise Overloaded("this user asks too often; try again later")
        self.charge(size, now_s)

    def charge(self, size: int, now_s: float) -> None:
        """Count bytes that cannot be refused any more: those of an answer."""
        if self._bytes is not None:
            self._bytes.take(size, now_s)


class Account:
    """A user as this broker knows it: what it may do, and the connections that it has here."""

    def __init__(self, user: UserRecord, allowance: Allowance | None = None) -> None:
        self.user = user
        self.allowance = allowance
        self.callers: dict[Caller, None] = {}
        self._decisions: dict[tuple[str, str, str], bool] = {}

    @property
    def name(self) -> str:
        return self.user.name

    def update(self, user: UserRecord) -> None:
        """The catalog says something else of this user."""
        self.user = user
        self._decisions.clear()

    def may(self, action: str, topic: str, group: str = "") -> bool:
        """Whether a grant covers it; remembered, since the same is asked with every request."""
        key = (action, topic, group)
        found = self._decisions.get(key)
        if found is None:
            found = any(grant.allows(*key) for grant in self.user.grants)
            if len(self._decisions) >= _DECISIONS_MAX:
                self._decisions.clear()
            self._decisions[key] = found
        return found

    def sees(self, topic: str) -> bool:
        """Whether it may do anything with a topic."""
        return self.may(PRODUCE, topic) or self.may(CONSUME, topic)

    def is_granted(self, wanted: WantedGrant) -> bool:
        """Whether it may do what a request asks for."""
        need = wanted.need
        match need.scope:
            case Scope.NAMED:
                return self.may(need.action, wanted.topics[0], wanted.group)
            case Scope.LISTED:
                if need.action:
                    return all(self.may(need.action, topic) for topic in wanted.topics)
                return all(map(self.sees, wanted.topics))
            case Scope.ANYWHERE:
                return any(grant.action in (need.action, ADMIN) for grant in self.user.grants)
            case Scope.CLUSTER:
                return self.user.is_admin
            case Scope.SIGNED_IN:
                return True
        return False


class Caller:
    """One connection, session or HTTP request, and who is behind it."""

    def __init__(
        self,
        account: Account | None,
        address: str,
        door: str,
        *,
        is_broker: bool = False,
        end: Callable[[QuiverError], None] | None = None,
        connection: str = "",
    ) -> None:
        self.account = account
        """None: a broker, or anonymous."""
        self.address = address
        """The host that it comes from; "" if that is not known."""
        self.door = door
        """The transport: tcp, http, grpc."""
        self.connection = connection
        """Its name in the log; "" if that is not known."""
        self.is_broker = is_broker
        """It has proved the secret of the cluster."""
        self.end = end
        """Closes the connection, with a last word: its user is gone, or may do less."""
        self.changing = 0
        """How many of its requests are under way that may change users: they are answered before
        it ends, also if it is its own user that they change."""
        self.ended: QuiverError | None = None
        """Why it may ask nothing more, though it is connected for another moment."""

    @property
    def name(self) -> str:
        """The name of the user; "" if it is anonymous."""
        return self.account.name if self.account is not None else ""

    @property
    def is_local(self) -> bool:
        """Whether it comes from the machine that this broker runs on."""
        return is_loopback(self.address)

    def __str__(self) -> str:
        who = "a broker" if self.is_broker else self.name or "anonymous"
        return f"{who} from {self.address or 'nowhere'} by {self.door}"


NOBODY: Final = Caller(None, "", "unknown")
"""At a door that does not tell."""
BROKER: Final[Caller] = Caller(None, "", "inside", is_broker=True)
"""The caller of requests that a broker makes of its own accord."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can use an address."""
    if host == "localhost":
        return True
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def bearer_token(authorization: str) -> str:
    """The token in `Authorization: Bearer ...`, for doors whose requests have headers."""
    scheme, _, token = authorization.strip().partition(" ")
    if not authorization.strip():
        return ""
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("write 'Authorization: Bearer TOKEN': no other scheme is known")
    return token.strip()


def covers(after: tuple[Grant, ...], before: tuple[Grant, ...]) -> bool:
    """Whether no grant was taken away."""
    return set(before) <= set(after)
