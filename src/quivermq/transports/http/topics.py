"""The routes of topics: list, create, show, alter, delete."""

from typing import Any, Final

from fastapi import APIRouter, Response

from quivermq.client import UNCHANGED, RateLimit, Retention, Retry, TopicInfo
from quivermq.transports.http.backend import Backend
from quivermq.transports.http.bodies import NewTopicBody, TopicBody, TopicName
from quivermq.transports.http.gate import BodyRoute
from quivermq.transports.http.models import TopicAnswer, TopicsAnswer
from quivermq.transports.http.statuses import Json, refusals
from quivermq.wire import proto

_SETTINGS: Final = {"retention": Retention, "rate_limit": RateLimit, "retry": Retry}
_VALUES: Final = ("max_deliveries", "dead_letter")


class TopicRoutes:
    """The handlers."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def router(self) -> APIRouter:
        router = APIRouter(route_class=BodyRoute, prefix="/v1/topics", tags=["topics"])
        add = router.add_api_route
        add("", self.topics, response_model=TopicsAnswer, responses=refusals())
        add(
            "",
            self.create,
            methods=["POST"],
            status_code=201,
            response_model=TopicAnswer,
            responses=refusals(409),
        )
        one = "/{topic}"
        add(one, self.topic, response_model=TopicAnswer, responses=refusals(404))
        add(
            one,
            self.alter,
            methods=["PATCH"],
            response_model=TopicAnswer,
            responses=refusals(404, 409),
        )
        add(one, self.delete, methods=["DELETE"], status_code=204, responses=refusals(404))
        return router

    async def topics(self) -> Response:
        """All topics with their partitions."""
        asked = proto.Request(describe_topics=proto.DescribeTopics())
        found = await self._backend.ask(asked)
        return await self._backend.json_of(
            "topics", found.topics_described.topics, lambda each: _answer(TopicInfo.of(each)), {}
        )

    async def create(self, body: NewTopicBody) -> Response:
        """Create a topic. Once more with the same settings changes nothing."""
        settings = {name: _setting(name, getattr(body, name)) for name in (*_SETTINGS, *_VALUES)}
        made = await self._backend.core.admin.create_topic(
            body.name,
            body.partitions,
            body.replication,
            **settings,
            group_idle_retention=UNCHANGED,
            drop_expired=_drop_expired(body),
        )
        return Json(_answer(made), 201)

    async def topic(self, topic: TopicName) -> Response:
        """One topic with its partitions."""
        asked = proto.DescribeTopics(topics=[topic])
        found = await self._backend.ask(proto.Request(describe_topics=asked))
        return Json(_answer(TopicInfo.of(found.topics_described.topics[0])))

    async def alter(self, topic: TopicName, body: TopicBody) -> Response:
        """Change the settings that are given; partitions can only be added."""
        given: dict[str, Any] = {
            name: _setting(name, getattr(body, name))
            if name in body.model_fields_set
            else UNCHANGED
            for name in (*_SETTINGS, *_VALUES)
        }
        altered = await self._backend.core.admin.alter_topic(
            topic,
            body.partitions,
            **given,
            group_idle_retention=UNCHANGED,
            drop_expired=_drop_expired(body),
        )
        return Json(_answer(altered))

    async def delete(self, topic: TopicName) -> Response:
        """Delete a topic and everything in it, for good."""
        await self._backend.core.admin.delete_topic(topic)
        return Response(status_code=204)


def _drop_expired(body: TopicBody) -> Any:
    # It is of a feature level that a cluster may not have.
    return body.drop_expired if "drop_expired" in body.model_fields_set else UNCHANGED


def _setting(name: str, body: Any) -> Any:
    kind = _SETTINGS.get(name)
    return body if kind is None or body is None else kind(**body.model_dump())


def _answer(topic: TopicInfo) -> TopicAnswer:
    return TopicAnswer.model_validate(topic)
