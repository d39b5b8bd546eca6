"""Answers requests about users: the leader of the metadata partition makes and changes them."""

import hashlib
import json
import secrets
from typing import Final, NamedTuple

from quivermq.cluster import (
    Edit,
    Grant,
    UserRecord,
    View,
    add_user,
    digest_of,
    grant_user,
    remove_user,
    replace_token,
    revoke_user,
)
from quivermq.errors import InvalidRequest
from quivermq.node.handlers.topics import done
from quivermq.node.metadata import Metadata
from quivermq.node.service import Handler
from quivermq.node.time_slices import Slices
from quivermq.wire import check_answer, proto

_TOKEN_BYTES: Final = 32
_TOKEN_PREFIX: Final = "qv_"  # noqa: S105 - by this people and scanners know one
_EXPIRES_MS_MAX: Final = 100 * 366 * 24 * 3600 * 1000


class _Records(NamedTuple):
    """All users as JSON, and by what a change is noticed."""

    users: dict[str, UserRecord]
    fingerprint: bytes
    listed: list[str]


class UserHandlers:
    """Adds, removes and lists users, and changes what they may do."""

    def __init__(self, metadata: Metadata, slices: Slices) -> None:
        self._metadata = metadata
        self._slices = slices
        self._records = _Records({}, b"", [])

    def handlers(self) -> dict[str, Handler]:
        return {
            "add_user": self.add,
            "remove_user": self.remove,
            "grant_user": self.grant,
            "revoke_user": self.revoke,
            "list_users": self.list,
            "list_user_records": self.list_records,
        }

    async def add(self, request: proto.Request) -> proto.Response:
        body = request.add_user
        if body.expires_after_ms > _EXPIRES_MS_MAX:
            raise InvalidRequest("a token lasts 100 years at most; without an end, for ever")
        now_ms = self._metadata.leading_replica().now_ms()
        expires_ms = now_ms + body.expires_after_ms if body.expires_after_ms else 0
        token = _TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
        digest = digest_of(token)

        def build(view: View) -> Edit:
            if body.new_token:
                return replace_token(view, body.name, digest, expires_ms)
            return add_user(view, UserRecord(body.name, digest, now_ms, expires_ms))

        await self._metadata.edit(build)
        return proto.Response(user_added=proto.UserAdded(name=body.name, token=token))

    async def remove(self, request: proto.Request) -> proto.Response:
        await self._metadata.edit(lambda view: remove_user(view, request.remove_user.name))
        return done()

    async def grant(self, request: proto.Request) -> proto.Response:
        body = request.grant_user
        await self._metadata.edit(lambda view: grant_user(view, body.name, _grant_of(body.grant)))
        return done()

    async def revoke(self, request: proto.Request) -> proto.Response:
        body = request.revoke_user
        grant = _grant_of(body.grant) if body.HasField("grant") else None
        await self._metadata.edit(lambda view: revoke_user(view, body.name, grant))
        return done()

    async def list(self, request: proto.Request) -> proto.Response:  # noqa: ARG002
        await self._metadata.catch_up()
        listed, size = proto.UsersListed(), 0
        async with self._slices.turn() as turn:
            for user in self._metadata.view.users.values():
                listed.users.add(
                    name=user.name,
                    grants=[proto.Grant(**grant._asdict()) for grant in user.grants],
                    created_ms=user.created_ms,
                    expires_ms=user.expires_ms,
                )
                size += listed.users[-1].ByteSize()
                check_answer(size, "remove users, or grant less by shorter prefixes")
                await turn.rest()
        return proto.Response(users_listed=listed)

    async def list_records(self, request: proto.Request) -> proto.Response:
        """For a gateway, which asks often: mostly nothing has changed."""
        await self._metadata.catch_up()
        records = await self._latest_records()
        answer = proto.UserRecordsListed(fingerprint=records.fingerprint)
        if request.list_user_records.fingerprint != records.fingerprint:
            check_answer(sum(map(len, records.listed)), "remove users, or grant less")
            answer.records.extend(records.listed)
        return proto.Response(user_records_listed=answer)

    async def _latest_records(self) -> _Records:
        users = self._metadata.view.users
        if self._records.fingerprint and self._records.users == users:
            return self._records
        digest, listed = hashlib.sha256(), []
        async with self._slices.turn() as turn:
            for user in users.values():
                listed.append(json.dumps(user.to_json(), sort_keys=True))
                digest.update(listed[-1].encode() + b"\n")
                await turn.rest()
        self._records = _Records(users, digest.digest(), listed)
        return self._records


def _grant_of(grant: proto.Grant) -> Grant:
    return Grant(grant.action, grant.topic, grant.group)
