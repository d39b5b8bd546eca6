"""The routes for those who operate brokers: health, readiness, metrics, the cluster."""

from typing import Any, Final

from fastapi import APIRouter, Response

import quivermq
from quivermq.client import ClusterInfo
from quivermq.transports.http.backend import Backend
from quivermq.transports.http.models import ClusterAnswer, HealthAnswer, ReadyAnswer
from quivermq.transports.http.statuses import Json, refusals, refused
from quivermq.transports.metrics import Metrics
from quivermq.wire import error_to_proto, proto

_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_TEXT: Final[dict[str, Any]] = {
    "description": "The metrics.",
    "content": {"text/plain": {"schema": {"type": "string"}}},
}


class OperatingRoutes:
    """The handlers."""

    def __init__(self, backend: Backend, metrics: Metrics) -> None:
        self._backend = backend
        self._metrics = metrics

    def router(self) -> APIRouter:
        router = APIRouter()
        add = router.add_api_route
        tags: list[Any] = ["operating"]
        add(
            "/health",
            self.health,
            response_model=HealthAnswer,
            responses=refusals(),
            tags=tags,
        )
        add("/ready", self.ready, response_model=ReadyAnswer, responses=refusals(), tags=tags)
        add(
            "/metrics",
            self.metrics,
            response_class=Response,
            responses={**refusals(), 200: _TEXT},
            tags=tags,
        )
        add(
            "/v1/cluster",
            self.cluster,
            response_model=ClusterAnswer,
            responses=refusals(),
            tags=["cluster"],
        )
        return router

    async def health(self) -> Response:
        """Whether the broker runs: for a supervisor that restarts it otherwise."""
        broker = self._backend.broker
        return Json(
            HealthAnswer(
                node=broker.node_id,
                cluster_id=broker.cluster_id,
                version=quivermq.__version__,
            )
        )

    async def ready(self) -> Response:
        """Whether the broker can be sent work: for a load balancer."""
        broker = self._backend.broker
        unready = broker.unready
        if unready is not None:
            return refused(error_to_proto(unready), 503)
        return Json(ReadyAnswer(node=broker.node_id, leader=broker.leader))

    async def metrics(self) -> Response:
        """Everything that this broker counts, in the text format of Prometheus."""
        return Response(await self._metrics.text(), media_type=_METRICS_TYPE)

    async def cluster(self) -> Response:
        """The brokers of the cluster, as this one sees them."""
        request = proto.Request(map=proto.MapQuery(brokers_only=True))
        found = await self._backend.ask(request)
        return Json(ClusterAnswer.model_validate(ClusterInfo.of(found.map)))
