"""The routes of groups: list, show, delete; poll and settle; commit and seek."""

from typing import Any, Final

from fastapi import APIRouter, Request, Response

from quivermq.client import GroupInfo
from quivermq.errors import InvalidRequest, QuiverError
from quivermq.names import check_group_name
from quivermq.transports.http.backend import Backend, place_of
from quivermq.transports.http.bodies import (
    AnyGroupName,
    CommitBody,
    ExtendBody,
    GroupName,
    LimitQuery,
    NackBody,
    PollBody,
    RejectBody,
    SeekBody,
    SettleBody,
    TopicName,
)
from quivermq.transports.http.gate import BodyRoute
from quivermq.transports.http.leases import Leases, leases_of, settlement
from quivermq.transports.http.models import (
    DoneAnswer,
    GroupAnswer,
    GroupsAnswer,
    InFlightAnswer,
    InFlightListAnswer,
    LeasedMessageAnswer,
    PlaceAnswer,
    PlacesAnswer,
    PollAnswer,
)
from quivermq.transports.http.statuses import Json, refusals
from quivermq.wire import proto

_ACK: Final = proto.Outcome.Value("ACK")
_NACK: Final = proto.Outcome.Value("NACK")
_REJECT: Final = proto.Outcome.Value("REJECT")
_RELEASE: Final = proto.Outcome.Value("RELEASE")
_EXTEND: Final = proto.Outcome.Value("EXTEND")


class NoSuchGroupError(InvalidRequest):
    """A group that does not exist: another status than other requests that make no sense."""

    @property
    def code(self) -> str:
        """As clients of all transports know it."""
        return InvalidRequest.__name__


class GroupRoutes:
    """The handlers."""

    def __init__(self, backend: Backend, leases: Leases) -> None:
        self._backend = backend
        self._leases = leases

    def router(self) -> APIRouter:
        router = APIRouter(
            route_class=BodyRoute, prefix="/v1/topics/{topic}/groups", tags=["groups"]
        )
        add = router.add_api_route
        add("", self.groups, response_model=GroupsAnswer, responses=refusals(404))
        add("/{group}", self.group, response_model=GroupAnswer, responses=refusals(404))
        add(
            "/{group}",
            self.delete,
            methods=["DELETE"],
            status_code=204,
            responses=refusals(404),
        )
        add(
            "/{group}/in-flight",
            self.in_flight,
            response_model=InFlightListAnswer,
            responses=refusals(404),
        )
        posts: dict[str, tuple[Any, Any, int]] = {
            "poll": (self.poll, PollAnswer, 404),
            "ack": (self.ack, DoneAnswer, 409),
            "nack": (self.nack, DoneAnswer, 409),
            "extend": (self.extend, DoneAnswer, 409),
            "reject": (self.reject, DoneAnswer, 409),
            "release": (self.release, DoneAnswer, 409),
            "commit": (self.commit, DoneAnswer, 416),
            "seek": (self.seek, PlacesAnswer, 416),
        }
        for name, (handler, answer, refusal) in posts.items():
            add(
                f"/{{group}}/{name}",
                handler,
                methods=["POST"],
                response_model=answer,
                responses=refusals(404, 409, refusal),
            )
        return router

    async def groups(self, topic: TopicName) -> Response:
        """All groups of a topic, with their counts of messages by state."""
        found = await self._backend.core.groups.groups(topic)
        return await self._backend.json_of("groups", found, _answer, {})

    async def group(self, topic: TopicName, group: AnyGroupName) -> Response:
        """One group of a topic."""
        check_group_name(group)
        try:
            return Json(_answer(await self._backend.core.groups.group(topic, group)))
        except InvalidRequest as error:
            raise NoSuchGroupError(str(error)) from error

    async def in_flight(
        self, topic: TopicName, group: GroupName, limit: LimitQuery = 100
    ) -> Response:
        """List the messages that are leased to consumers of a group, the longest held first."""
        try:
            found = await self._backend.core.groups.in_flight(topic, group, limit)
        except InvalidRequest as error:
            raise NoSuchGroupError(str(error)) from error
        return Json(InFlightListAnswer(in_flight=[InFlightAnswer.of(each) for each in found]))

    async def delete(self, topic: TopicName, group: AnyGroupName) -> Response:
        """Delete a group: its next poll creates it anew."""
        await self._backend.core.groups.delete_group(topic, group)
        return Response(status_code=204)

    async def poll(
        self, topic: TopicName, group: GroupName, request: Request, body: PollBody
    ) -> Response:
        """Lease messages: no other consumer of the group gets them meanwhile.

        Answers as soon as there are some. The first poll creates the group. What it answers, or
        only `leases` of it, is the body for ack, nack, extend, reject and release.
        """
        leased = await self._leases.poll(request, topic, group, body)
        return await self._backend.json_of(
            "messages",
            leased.messages,
            lambda one: LeasedMessageAnswer.of_leased(one, leased.name_of(one), body.encoding),
            {"leases": leases_of(leased)},
        )

    async def ack(self, topic: TopicName, group: GroupName, body: SettleBody) -> Response:
        """Acknowledge messages: the group never gets them again."""
        await self._leases.settle(topic, group, body.leases, settlement(_ACK))
        return Json(DoneAnswer())

    async def nack(self, topic: TopicName, group: GroupName, body: NackBody) -> Response:
        """Report messages as failed: they are delivered again."""
        delay_ms = None if body.delay is None else round(body.delay * 1000)
        terms = settlement(_NACK, delay_ms=delay_ms, reason=body.reason)
        await self._leases.settle(topic, group, body.leases, terms)
        return Json(DoneAnswer())

    async def extend(self, topic: TopicName, group: GroupName, body: ExtendBody) -> Response:
        """Make leases, each as a whole, end so many seconds from now."""
        terms = settlement(_EXTEND, visibility_ms=round(body.seconds * 1000))
        await self._leases.settle(topic, group, body.leases, terms)
        return Json(DoneAnswer())

    async def reject(self, topic: TopicName, group: GroupName, body: RejectBody) -> Response:
        """Put messages that can never succeed among the dead letters at once."""
        terms = settlement(_REJECT, reason=body.reason)
        await self._leases.settle(topic, group, body.leases, terms)
        return Json(DoneAnswer())

    async def release(self, topic: TopicName, group: GroupName, body: SettleBody) -> Response:
        """Give messages back unprocessed: others get them at once, no failure is counted."""
        await self._leases.settle(topic, group, body.leases, settlement(_RELEASE))
        return Json(DoneAnswer())

    async def commit(self, topic: TopicName, group: GroupName, body: CommitBody) -> Response:
        """Store how far a group is that reads partitions in order, without leases."""
        await self._backend.core.admin.commit(topic, group, body.partition, body.offset)
        return Json(DoneAnswer())

    async def seek(self, topic: TopicName, group: GroupName, body: SeekBody) -> Response:
        """Move a group to another place: all its leases end, it gets everything from there on."""
        place = place_of("to", body.to)
        found = await self._backend.core.groups.seek(topic, group, place, body.partition)
        offsets = [PlaceAnswer(partition=number, offset=at) for number, at in found.items()]
        return Json(PlacesAnswer(offsets=offsets))


def _answer(group: GroupInfo) -> GroupAnswer:
    return GroupAnswer.model_validate(group)


def status_override(error: QuiverError) -> int | None:
    """The status of an error whose class does not say it."""
    return 404 if isinstance(error, NoSuchGroupError) else None
