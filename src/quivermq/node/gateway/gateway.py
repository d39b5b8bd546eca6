"""Puts the parts of a gateway together, and starts and stops them in order.

It has no data directory, no replica and no peer port: a gateway that is gone has lost nothing.
"""

import logging
import ssl
import time
from typing import TYPE_CHECKING, Final

from quivermq.batches import Limits
from quivermq.client import Router
from quivermq.errors import ConnectionFailed, InvalidRequest, QuiverError
from quivermq.log import STORED_LIMITS
from quivermq.node.access_control import AccessControl
from quivermq.node.audit_log import AuditLog
from quivermq.node.cluster_secret import CLIENT_LISTENER, ClusterSecret, read_secret
from quivermq.node.counters import Counters
from quivermq.node.gateway.broker_pool import BrokerPool
from quivermq.node.gateway.broker_routes import BrokerRoutes
from quivermq.node.gateway.cluster_watch import ClusterWatch
from quivermq.node.gateway.gateway_service import GatewayService
from quivermq.node.listener import raise_file_limit
from quivermq.settings import BrokerSettings
from quivermq.tls import BrokerTls, client_context

if TYPE_CHECKING:
    from quivermq.tracing import BrokerTracer

logger = logging.getLogger("quivermq.gateway")

_WAITING_BYTES_MIN: Final = 64 << 10


class Gateway:
    """Serves the clients of a cluster, without transports: a `GatewayServer` opens those."""

    node_id = 0

    def __init__(self, settings: BrokerSettings) -> None:
        if not settings.gateway:
            raise InvalidRequest("these are the settings of a broker: set gateway, and join")
        self.settings = settings
        self.counters = Counters()
        self.limits = Limits(settings.message_bytes_max, settings.batch_bytes_max)
        self.tracer: BrokerTracer | None = None
        """A gateway makes no spans; the requests that it passes on carry their contexts."""
        self.tls: BrokerTls | None = None
        """Of its listeners, once it is started, if the settings name certificates."""
        self._audit: AuditLog | None = None
        self._is_open = False
        self._is_stopping = False

    async def start(self) -> None:
        """Begin to look for brokers; transports may be opened afterwards."""
        settings = self.settings
        secret = read_secret(settings)
        raise_file_limit()
        self.tls = _listener_tls(settings)
        self._dial_with()  # raises if the file does not fit
        self._make_parts(secret)
        self._is_open = True
        if self.tls is not None:
            self.tls.start()
        self._guard()
        self.watch.start()

    def _make_parts(self, secret: bytes) -> None:
        settings = self.settings
        proven = ClusterSecret(secret, CLIENT_LISTENER) if secret else None
        self._brokers = BrokerPool("gateway", STORED_LIMITS, self._dial_with, proven)
        timeout_s = settings.request_timeout_ms / 1000
        router = Router(self._brokers.transport, settings.join.split(","), timeout_s)
        router.zone = settings.zone
        self.partitions = BrokerRoutes(router)
        self.watch = ClusterWatch(router, has_users=settings.users)
        self.access = AccessControl(
            settings,
            secret,
            self.watch.learn_users,
            lambda: self.watch.is_current,
            _now_ms,
            self.partitions.slices,
        )
        self.watch.on_users = self.access.learn
        self.service = GatewayService(
            self._brokers,
            self.partitions,
            self.counters,
            timeout_s,
            settings.stop_timeout_ms / 1000,
            max(_WAITING_BYTES_MIN, settings.unread_bytes_max // settings.requests_max),
            self.stats,
        )

    def _guard(self) -> None:
        """Check requests, if there is anything to check."""
        if self.access.has_users:
            audit = AuditLog(self.node_id, None, self.service.call_as_broker, _now_ms)
            self.access.on_refused = audit.record_sign_in
            self.service.guard(self.access, audit.record)
            self._audit = audit
        elif self.access.secret is not None:
            self.service.guard(self.access, lambda *_: None)
        self.access.start()

    def _dial_with(self) -> ssl.SSLContext | None:
        """The context of connections to brokers: TLS if a CA is named by which to know them."""
        if not self.settings.tls_ca:
            return None
        if self.settings.peer_tls and self.tls is not None:
            return self.tls.dialer
        return client_context(self.settings.tls_ca)

    @property
    def cluster_id(self) -> str:
        return self.watch.cluster_id

    @property
    def leader(self) -> int:
        return self.watch.leader

    @property
    def is_ready(self) -> bool:
        return self.unready is None

    @property
    def unready(self) -> QuiverError | None:
        """Why it should not be sent work; None: brokers answer."""
        if self._is_stopping:
            return ConnectionFailed("this gateway is stopping")
        return self.watch.failure

    @property
    def open_requests(self) -> int:
        """Requests that wait for a broker."""
        return self._brokers.open_requests

    def stats(self) -> dict[str, float]:
        return {
            "requests_total": self.counters.requests,
            "forwarded_total": self.counters.forwarded,
            "overloaded_total": self.counters.overloaded,
            "connections": self.counters.connections,
            "open_requests": self.open_requests,
        }

    async def stop(self) -> None:
        """Let what was asked be answered, and close in order; also half a start."""
        if self._is_stopping or not self._is_open:
            return
        self._is_stopping = True
        for close in (
            self.service.close,
            self._close_audit,
            self.watch.close,
            self.access.close,
            self.partitions.close,
            self._brokers.close,
            self._stop_tls,
        ):
            try:
                await close()
            except Exception:
                # One part that fails to close must not keep the others open.
                logger.exception("%s failed", close.__qualname__)

    async def _close_audit(self) -> None:
        if self._audit is not None:
            await self._audit.close()

    async def _stop_tls(self) -> None:
        if self.tls is not None:
            await self.tls.close()


def _listener_tls(settings: BrokerSettings) -> BrokerTls | None:
    """Unless brokers want to see it, the certificate need not be one of the brokers' CA."""
    if settings.tls_cert and not settings.peer_tls:
        settings = settings.model_copy(update={"tls_ca": ""})
    return BrokerTls.of(settings)


def _now_ms() -> int:
    return int(time.time() * 1000)
