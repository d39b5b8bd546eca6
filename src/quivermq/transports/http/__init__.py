"""The HTTP transport: health, metrics and the API, on the broker's own event loop.

Nothing here is imported unless HTTP is on: FastAPI takes longer to load than a broker does.
"""

from quivermq.transports.http.listener import HttpListener

__all__ = ["HttpListener"]
