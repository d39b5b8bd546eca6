"""Lets users in by their tokens, and decides what each request may do.

Only a broker that knows all that the catalog says may refuse: one that just started, or is behind,
has maybe not heard of a user or a grant yet. So every refusal waits until the catalog is caught up
with; any number of them share one question to the quorum.

A connection ends as soon as its user is removed, gets another token, loses a grant, or its token
expires. Clients connect again, and are told what they may do by then.
"""

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from quivermq.cluster import CONSUME, UserRecord, View, digest_of
from quivermq.errors import (
    Forbidden,
    NotEnoughReplicas,
    Overloaded,
    QuiverError,
    Unauthenticated,
)
from quivermq.node.callers import Account, Allowance, Caller, covers
from quivermq.node.cluster_secret import CLIENT_LISTENER, Challenge, ClusterSecret
from quivermq.node.permissions import Scope, WantedGrant, wanted_by
from quivermq.node.tasks import end_tasks
from quivermq.node.time_slices import Slices
from quivermq.settings import BrokerSettings
from quivermq.wire import proto

logger = logging.getLogger("quivermq.access")

NO_USERS: Final = "?"
"""The user of a request that was passed on by a broker without users; no user can be called so."""
_TOKEN_CHARACTERS_MAX: Final = 200
_EXPIRY_S: Final = 1.0
_LAST_ANSWERS_S: Final = 0.3


class CatchUp:
    """One question to the quorum for all that ask while the one before it is under way."""

    def __init__(self, catch_up: Callable[[], Awaitable[None]]) -> None:
        self._catch_up = catch_up
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        """Know all that the catalog said when this was called."""
        if self._next is None:
            self._next = asyncio.create_task(self._run_after(self._running), name="catch up")
            # Whoever asked may have given up: then its failure is nobody's.
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())
        # Shielded: others wait for the same answer.
        await asyncio.shield(self._next)

    async def _run_after(self, running: "asyncio.Task[None] | None") -> None:
        if running is not None:
            await asyncio.wait([running])
        self._running, self._next = self._next, None
        await self._catch_up()

    async def close(self) -> None:
        await end_tasks(*(task for task in (self._running, self._next) if task is not None))


class AccessControl:
    """The users of this broker, and the secret by which brokers know each other."""

    def __init__(
        self,
        settings: BrokerSettings,
        secret: bytes,
        catch_up: Callable[[], Awaitable[None]],
        is_current: Callable[[], bool],
        now_ms: Callable[[], int],
        slices: Slices,
    ) -> None:
        """`is_current`: whether the catalog as known here is younger than this broker's start."""
        self.has_users = settings.users
        self.secret = ClusterSecret(secret, CLIENT_LISTENER) if secret else None
        self.on_refused: Callable[[Caller, QuiverError], None] = lambda _caller, _error: None
        """Told of each sign-in that is refused."""
        self._settings = settings
        self._catch_up = CatchUp(catch_up)
        self._is_current = is_current
        self._now_ms = now_ms
        self._known: dict[str, UserRecord] = {}
        self._accounts: dict[str, Account] = {}
        self._by_digest: dict[str, Account] = {}
        self._has_admin = False
        self._anonymous: dict[Caller, None] = {}
        self._slices = slices
        self._expiring: asyncio.Task[None] | None = None

    @property
    def known_users(self) -> Mapping[str, UserRecord]:
        """By their names, as this broker or gateway has heard of them."""
        return self._known

    # Signing in.

    async def sign_in(
        self,
        token: str,
        address: str,
        door: str,
        end: Callable[[QuiverError], None] | None = None,
    ) -> Caller:
        """The caller with a token; anonymous without one, where that is allowed.

        `end` is called if the connection has to end; `sign_out` when it is closed. What asks once
        has no `end`, and need not sign out.
        """
        caller = self.sign_in_now(token, address, door, end)
        if caller is None:
            await self._know_all()
            caller = self.sign_in_now(token, address, door, end, knows_all=True)
        if caller is None:
            raise Unauthenticated("a token is needed")
        return caller

    def sign_in_now(
        self,
        token: str,
        address: str,
        door: str,
        end: Callable[[QuiverError], None] | None = None,
        *,
        knows_all: bool = False,
    ) -> Caller | None:
        """The same without waiting; None if it takes more than is known at this moment."""
        caller = Caller(None, address, door, end=end)
        try:
            if not self._recognise(caller, token, knows_all=knows_all):
                return None
            self._enter(caller)
        except QuiverError as error:
            self.on_refused(caller, error)
            raise
        return caller

    def _recognise(self, caller: Caller, token: str, *, knows_all: bool) -> bool:
        """False: it cannot be told yet."""
        if not self.has_users:
            if token:
                # A token that is not checked would look like protection.
                raise Unauthenticated(
                    "this broker has no users, and cannot check a token: connect without one, and "
                    "let only those reach its ports who may use it"
                )
            return True
        if not knows_all and not self._is_current():
            return False
        if token:
            caller.account = self._find(token)
            if caller.account is None and knows_all:
                raise Unauthenticated("this token is unknown, was revoked or has expired")
            return caller.account is not None
        if caller.is_local and not self._has_admin and not self._settings.gateway:
            # Whoever is on this machine may make the first admin. A gateway's is another machine.
            return knows_all
        raise Unauthenticated(
            "a token is needed: pass it as token=..., --token, QUIVER_TOKEN or "
            "'Authorization: Bearer ...'"
        )

    def _find(self, token: str) -> Account | None:
        if len(token) > _TOKEN_CHARACTERS_MAX:
            return None
        digest = digest_of(token)
        account = self._by_digest.get(digest)
        if account is None or not hmac.compare_digest(account.user.digest, digest):
            return None
        return None if self._is_expired(account) else account

    def _is_expired(self, account: Account) -> bool:
        return 0 < account.user.expires_ms <= self._now_ms()

    async def _know_all(self) -> None:
        await self._catch_up()
        if not self._is_current():
            raise NotEnoughReplicas("this broker is still learning who may use it; try again")

    def _enter(self, caller: Caller) -> None:
        if caller.end is None:
            return
        if caller.account is None:
            if self.has_users:
                self._anonymous[caller] = None
            return
        most = self._settings.user_connections_max
        if most and len(caller.account.callers) >= most:
            raise Overloaded(f"user {caller.name} has {most} connections here; close some of them")
        caller.account.callers[caller] = None

    def sign_out(self, caller: Caller) -> None:
        """The connection is closed."""
        self._anonymous.pop(caller, None)
        if caller.account is not None:
            caller.account.callers.pop(caller, None)

    def challenge(self, nonce: bytes) -> Challenge | None:
        """For a broker that dialled; None: this one has no secret, and takes everybody's word."""
        return self.secret.challenge(nonce) if self.secret is not None else None

    # Requests.

    async def check(self, caller: Caller | None, request: proto.Request) -> None:
        """Raise `Forbidden` or `Unauthenticated` unless the caller may ask this."""
        if self.allows(caller, request):
            return
        if self.has_users:
            await self._know_all()
            if self.allows(caller, request):
                return
        raise self._refusal(caller, request)

    def allows(self, caller: Caller | None, request: proto.Request) -> bool:
        """Whether the caller may ask this, by what is known at this moment."""
        if not self.has_users:
            return self._allows_without_users(caller, request)
        if caller is None or caller.ended is not None:
            return False
        account = caller.account
        if caller.is_broker:
            if not request.user:
                return True
            # The broker that passed it on has checked it; but that one may be behind.
            account = self._accounts.get(request.user)
            if account is None:
                return False
        elif request.user or request.forwarded:
            return False
        wanted = wanted_by(request)
        if wanted is None:
            return False
        if account is None:
            return not self._has_admin and wanted.need.scope is not Scope.BROKERS
        return account.is_granted(wanted)

    def _allows_without_users(self, caller: Caller | None, request: proto.Request) -> bool:
        """Everything but what brokers ask of each other, once these have a secret.

        A kind that this build lacks is refused later, by that name.
        """
        if self.secret is None or (caller is not None and caller.is_broker):
            return True
        if request.user or request.forwarded:
            return False
        wanted = wanted_by(request)
        return wanted is None or wanted.need.scope is not Scope.BROKERS

    def _refusal(self, caller: Caller | None, request: proto.Request) -> QuiverError:
        if caller is None:
            return Unauthenticated("this door does not ask for tokens: use another one")
        if caller.ended is not None:
            return caller.ended
        if request.user == NO_USERS and caller.is_broker:
            return Unauthenticated(
                "the broker that passed this request on has no users: start it with --users"
            )
        if not caller.is_broker and (request.user or request.forwarded):
            return Forbidden("only brokers pass requests on: this connection is none of a broker")
        wanted = wanted_by(request)
        if wanted is None:
            return Forbidden("this broker does not know what such a request needs: upgrade it")
        if wanted.need.scope is Scope.BROKERS:
            return Forbidden(f"only brokers ask for {wanted.kind}, and this connection is of none")
        return self._forbidden(request.user or caller.name, wanted)

    def _forbidden(self, name: str, wanted: WantedGrant) -> QuiverError:
        if not name or name not in self._accounts:
            return Unauthenticated("a token is needed, and its user must exist")
        return Forbidden(f"user {name} may not {wanted}: an admin can, by `quiver user grant`")

    def pass_on(self, caller: Caller | None, request: proto.Request) -> None:
        """Name the user in a request that another broker will answer."""
        if caller is None or not caller.is_broker:
            name = caller.name if caller is not None else ""
            # Anonymous with users: an admin of this machine, which this broker answers for.
            request.user = name or ("" if self.has_users else NO_USERS)

    async def hide(
        self, caller: Caller | None, request: proto.Request, response: proto.Response
    ) -> None:
        """Take out of an answer that lists everything what the caller may not see."""
        if caller is None or not self.has_users:
            return
        account = self._accounts.get(request.user) if caller.is_broker else caller.account
        if account is None or account.user.is_admin:
            return
        match response.WhichOneof("body"):
            case "map":
                await self._keep(response.map.topics, lambda topic: account.sees(topic.name))
            case "topics_described":
                described = response.topics_described.topics
                await self._keep(described, lambda each: account.sees(each.topic.name))
            case "groups_described":
                topic = request.describe_groups.topic
                groups = response.groups_described.groups
                await self._keep(groups, lambda each: account.may(CONSUME, topic, each.group))
            case "sticky_described":
                sticky = response.sticky_described.groups
                await self._keep(sticky, lambda each: account.may(CONSUME, each.topic, each.group))

    async def _keep(self, listed: Any, may_see: Callable[[Any], bool]) -> None:
        kept = []
        async with self._slices.turn() as turn:
            for each in listed:
                if may_see(each):
                    kept.append(each)
                await turn.rest()
        if len(kept) < len(listed):
            del listed[:]
            listed.extend(kept)

    # Changes of the catalog.

    def learn(self, view: View) -> None:
        """The catalog has changed."""
        if not self.has_users or view.users == self._known:
            return
        self._known = view.users
        for name in [name for name in self._accounts if name not in view.users]:
            removed = self._accounts.pop(name)
            self._end_all(removed, Unauthenticated(f"user {name} was removed"))
        for name, user in view.users.items():
            account = self._accounts.get(name)
            if account is None:
                self._accounts[name] = Account(user, self._allowance())
            elif account.user != user:
                self._update(account, user)
        self._by_digest = {account.user.digest: account for account in self._accounts.values()}
        self._has_admin = any(user.is_admin for user in view.users.values())
        if self._has_admin:
            self._end(self._anonymous, Unauthenticated("there is an admin: a token is needed"))

    def _update(self, account: Account, user: UserRecord) -> None:
        before = account.user
        account.update(user)
        if not hmac.compare_digest(before.digest, user.digest):
            self._end_all(account, Unauthenticated(f"user {user.name} has another token"))
        elif not covers(user.grants, before.grants):
            self._end_all(account, Forbidden(f"user {user.name} may do less than before"))

    def _allowance(self) -> Allowance | None:
        settings = self._settings
        requests, bytes_ = settings.user_requests_per_second, settings.user_bytes_per_second
        if not (requests or bytes_):
            return None
        return Allowance(requests, bytes_, asyncio.get_running_loop().time())

    def _end_all(self, account: Account, error: QuiverError) -> None:
        self._end(account.callers, error)

    def _end(self, callers: dict[Caller, None], error: QuiverError) -> None:
        ended = list(callers)
        callers.clear()
        for caller in ended:
            caller.ended = error
            if caller.end is not None:
                extra = {"connection": caller.connection} if caller.connection else None
                logger.info("the connection of %s ends: %s", caller, error, extra=extra)
                if caller.changing:
                    asyncio.get_running_loop().call_later(_LAST_ANSWERS_S, caller.end, error)
                else:
                    caller.end(error)

    def start(self) -> None:
        """Begin to look for tokens that expire."""
        if self.has_users:
            self._expiring = asyncio.create_task(self._end_expired(), name="expiring tokens")

    async def _end_expired(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRY_S)
            for account in list(self._accounts.values()):
                if account.callers and self._is_expired(account):
                    self._end_all(account, Unauthenticated(f"the token of {account.name} expired"))

    async def close(self) -> None:
        if self._expiring is not None:
            await end_tasks(self._expiring)
        await self._catch_up.close()
