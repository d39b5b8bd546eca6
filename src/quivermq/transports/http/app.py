"""The routes of the HTTP API: each asks the broker's one `Service`, like every other transport."""

import logging
from typing import Any, Final

from fastapi import FastAPI, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

import quivermq
from quivermq.client import ClusterInfo, TopicInfo
from quivermq.errors import InvalidRequest, QuiverError
from quivermq.node import Broker
from quivermq.transports.http.docs_page import docs_page
from quivermq.transports.http.models import (
    ClusterAnswer,
    ErrorAnswer,
    HealthAnswer,
    ReadyAnswer,
    TopicAnswer,
    TopicsAnswer,
)
from quivermq.transports.http.statuses import error_answer, status_of
from quivermq.transports.metrics import Metrics
from quivermq.wire import error_from_proto, error_to_proto, proto

logger = logging.getLogger("quivermq.http")

_DESCRIPTION: Final = (
    "Health, metrics and the state of a QuiverMQ broker and its cluster. Every broker answers "
    "for the whole cluster. 64-bit numbers are strings. Errors have a fitting status and say what "
    "to do."
)
_TIMEOUT_MS: Final = 5_000
_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ERROR: Final[dict[str, Any]] = {"model": ErrorAnswer}


class Json(Response):
    """A model as it is: it was checked when it was made."""

    media_type = "application/json"

    def __init__(self, model: BaseModel, status: int = 200) -> None:
        super().__init__(model.model_dump_json(), status)


class Routes:
    """The handlers of all routes."""

    def __init__(self, broker: Broker, metrics: Metrics) -> None:
        self._broker = broker
        self._metrics = metrics

    async def health(self) -> Response:
        """Whether the broker runs: for a supervisor that restarts it otherwise."""
        broker = self._broker
        return Json(
            HealthAnswer(
                node=broker.settings.node_id,
                cluster_id=broker.membership.cluster_id,
                version=quivermq.__version__,
            )
        )

    async def ready(self) -> Response:
        """Whether the broker can be sent work: for a load balancer."""
        broker = self._broker
        unready = broker.unready
        if unready is not None:
            return refused(error_to_proto(unready), 503)
        return Json(ReadyAnswer(node=broker.settings.node_id, leader=broker.metadata.leader))

    async def metrics(self) -> Response:
        """Everything that this broker counts, in the text format of Prometheus."""
        return Response(await self._metrics.text(), media_type=_METRICS_TYPE)

    async def cluster(self) -> Response:
        """The brokers of the cluster, as this one sees them."""
        found = await self._ask(proto.Request(map=proto.MapQuery(brokers_only=True)))
        return Json(ClusterAnswer.model_validate(ClusterInfo.of(found.map)))

    async def topics(self) -> Response:
        """All topics with their partitions."""
        found = await self._ask(proto.Request(describe_topics=proto.DescribeTopics()))
        parts = []
        async with self._broker.partitions.slices.turn() as turn:
            for topic in found.topics_described.topics:
                model = TopicAnswer.model_validate(TopicInfo.of(topic))
                parts.append(model.model_dump_json())
                await turn.rest()
        # A `TopicsAnswer`, made in parts.
        return Response(f'{{"topics":[{",".join(parts)}]}}', media_type="application/json")

    async def topic(
        self, topic: str = Path(description="The name of the topic.", examples=["orders"])
    ) -> Response:
        """One topic with its partitions."""
        asked = proto.DescribeTopics(topics=[topic])
        found = await self._ask(proto.Request(describe_topics=asked))
        return Json(TopicAnswer.model_validate(TopicInfo.of(found.topics_described.topics[0])))

    async def _ask(self, request: proto.Request) -> proto.Response:
        request.timeout_ms = _TIMEOUT_MS
        response, _ = await self._broker.service.call(request, [])
        if response.WhichOneof("body") == "error":
            raise error_from_proto(response.error)
        return response


def make_app(broker: Broker, metrics: Metrics) -> FastAPI:
    """The ASGI application of one broker."""
    app = FastAPI(
        title="QuiverMQ",
        version=quivermq.__version__,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
    )
    routes = Routes(broker, metrics)
    unready: dict[int | str, dict[str, Any]] = {503: _ERROR}
    missing: dict[int | str, dict[str, Any]] = {404: _ERROR, 503: _ERROR}
    text: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}}}
    add = app.add_api_route
    add("/health", routes.health, response_model=HealthAnswer, tags=["operating"])
    add("/ready", routes.ready, response_model=ReadyAnswer, responses=unready, tags=["operating"])
    add(
        "/metrics",
        routes.metrics,
        response_class=Response,
        responses=text,
        tags=["operating"],
    )
    add(
        "/v1/cluster",
        routes.cluster,
        response_model=ClusterAnswer,
        responses=unready,
        tags=["cluster"],
    )
    add(
        "/v1/topics", routes.topics, response_model=TopicsAnswer, responses=unready, tags=["topics"]
    )
    add(
        "/v1/topics/{topic}",
        routes.topic,
        response_model=TopicAnswer,
        responses=missing,
        tags=["topics"],
    )
    _add_pages(app)
    _add_errors(app, broker)
    return app


def _add_pages(app: FastAPI) -> None:
    async def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi()))

    async def start() -> RedirectResponse:
        return RedirectResponse("/docs")

    app.add_api_route("/docs", docs, include_in_schema=False)
    app.add_api_route("/", start, include_in_schema=False)


def _add_errors(app: FastAPI, broker: Broker) -> None:
    """Whatever goes wrong looks the same."""

    async def quiver_error(_: Request, error: Exception) -> Response:
        known = error if isinstance(error, QuiverError) else QuiverError(str(error))
        return refused(broker.service.refusal(known).error, status_of(known))

    async def http_error(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        what = f"{request.method} {request.url.path}"
        known = InvalidRequest(f"there is no {what}: see /docs for what there is")
        return refused(error_to_proto(known), status, getattr(error, "headers", None))

    async def misfit(_: Request, error: Exception) -> Response:
        found = error.errors() if isinstance(error, RequestValidationError) else []
        text = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in found)
        return refused(error_to_proto(InvalidRequest(text)), 400)

    async def failure(request: Request, error: Exception) -> Response:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        known = QuiverError(f"the broker failed at this request: {error!r}")
        return refused(error_to_proto(known), 500)

    app.add_exception_handler(QuiverError, quiver_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, misfit)
    app.add_exception_handler(Exception, failure)


def refused(error: proto.Error, status: int, headers: dict[str, str] | None = None) -> Response:
    """An error as an answer."""
    answer = Json(error_answer(error), status)
    for name, value in (headers or {}).items():
        answer.headers[name] = value
    return answer
