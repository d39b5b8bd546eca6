"""Administration of users: tokens, and what they may do."""

from dataclasses import dataclass, field
from typing import Final, Self

from quivermq.client.checks import check_number, checked_name
from quivermq.client.retry import Attempts
from quivermq.client.router import Router
from quivermq.client.transport import run
from quivermq.errors import InvalidRequest
from quivermq.wire import proto

_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantInfo:
    """An action that is allowed, with topics and groups whose names begin so; "" means all."""

    action: str
    topic: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserInfo:
    """A user, without its token, which no broker knows."""

    name: str
    grants: list[GrantInfo] = field(default_factory=list)
    created_ms: int = 0
    expires_ms: int | None = None
    """When the token ends; None: never."""

    @classmethod
    def of(cls, user: proto.User) -> Self:
        """As a broker described it."""
        return cls(
            name=user.name,
            grants=[
                GrantInfo(action=each.action, topic=each.topic, group=each.group)
                for each in user.grants
            ],
            created_ms=user.created_ms,
            expires_ms=user.expires_ms or None,
        )


class UserAdmin:
    """The part of a client that administers users."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def add(self, name: str, expires: float | None, *, new_token: bool) -> str:
        """Make a user, or another token for one; returns the token."""
        request = proto.Request()
        request.add_user.name = checked_name("user", name)
        request.add_user.new_token = new_token
        if expires is not None:
            check_number("expires", expires, least=0.001)
            request.add_user.expires_after_ms = round(expires * 1000)
        return (await self._ask(request, f"adding user {name!r}")).user_added.token

    async def remove(self, name: str) -> None:
        """The user is gone, and its connections end."""
        request = proto.Request()
        request.remove_user.name = checked_name("user", name)
        await self._ask(request, f"removing user {name!r}")

    async def grant(self, name: str, action: str, topic: str, group: str) -> None:
        """Allow an action."""
        request = proto.Request()
        request.grant_user.name = checked_name("user", name)
        request.grant_user.grant.CopyFrom(_grant(action, topic, group))
        await self._ask(request, f"granting {action!r} to user {name!r}")

    async def revoke(self, name: str, action: str | None, topic: str, group: str) -> None:
        """Take one grant away, exactly as it was given; without an action, all."""
        request = proto.Request()
        request.revoke_user.name = checked_name("user", name)
        if action is not None:
            request.revoke_user.grant.CopyFrom(_grant(action, topic, group))
        elif topic or group:
            raise InvalidRequest("name the action to revoke, or no prefix to revoke everything")
        await self._ask(request, f"revoking what user {name!r} may do")

    async def all(self) -> list[UserInfo]:
        """All users, by name."""
        request = proto.Request()
        request.list_users.SetInParent()
        response = await self._ask(request, "listing users")
        users = [UserInfo.of(user) for user in response.users_listed.users]
        return sorted(users, key=lambda user: user.name)

    async def _ask(self, request: proto.Request, what: str) -> proto.Response:
        attempts = Attempts(self._router.transport, self._router.timeout, what, share=_SHARE)
        return await self._router.ask_any(request, attempts)


def _grant(action: str, topic: str, group: str) -> proto.Grant:
    for what, value in (("action", action), ("topic", topic), ("group", group)):
        if not isinstance(value, str):
            raise InvalidRequest(f"{what} must be text: {value!r}")
    return proto.Grant(action=action, topic=topic, group=group)


class Users:
    """The users of a cluster, as `client.users`."""

    def __init__(self, admin: UserAdmin) -> None:
        self._admin = admin

    def add(self, name: str, *, expires: float | None = None, new_token: bool = False) -> str:
        """Add a user that may do nothing yet, and return its token, which is shown only here.

        >>> token = client.users.add("billing")
        >>> client.users.grant("billing", "consume", topic="orders", group="billing")

        `expires` is the life of the token in seconds, by default without end. With `new_token` the
        user exists: its former token, and every connection that was made with it, ends.
        """
        return run(self._admin.add(name, expires, new_token=new_token))

    def remove(self, name: str) -> None:
        """Remove a user; its connections end within seconds."""
        run(self._admin.remove(name))

    def grant(self, name: str, action: str, *, topic: str = "", group: str = "") -> None:
        """Allow `produce`, `consume` or `admin`, with topics and groups whose names begin so.

        `admin` includes the other two; without prefixes it is for the whole cluster.
        """
        run(self._admin.grant(name, action, topic, group))

    def revoke(
        self, name: str, action: str | None = None, *, topic: str = "", group: str = ""
    ) -> None:
        """Take a grant away, exactly as it was given; without an action, all grants."""
        run(self._admin.revoke(name, action, topic, group))

    def all(self) -> list[UserInfo]:
        """All users with their grants, by name."""
        return run(self._admin.all())


class AsyncUsers:
    """The users of a cluster, as `client.users` of the asyncio client; see `Users`."""

    def __init__(self, admin: UserAdmin) -> None:
        self._admin = admin

    async def add(self, name: str, *, expires: float | None = None, new_token: bool = False) -> str:
        """Add a user that may do nothing yet, and return its token, which is shown only here."""
        return await self._admin.add(name, expires, new_token=new_token)

    async def remove(self, name: str) -> None:
        """Remove a user; its connections end within seconds."""
        await self._admin.remove(name)

    async def grant(self, name: str, action: str, *, topic: str = "", group: str = "") -> None:
        """Allow `produce`, `consume` or `admin`, with topics and groups whose names begin so."""
        await self._admin.grant(name, action, topic, group)

    async def revoke(
        self, name: str, action: str | None = None, *, topic: str = "", group: str = ""
    ) -> None:
        """Take a grant away, exactly as it was given; without an action, all grants."""
        await self._admin.revoke(name, action, topic, group)

    async def all(self) -> list[UserInfo]:
        """All users with their grants, by name."""
        return await self._admin.all()
