"""The gRPC transport: the public API of `proto/quiver/v1/quiver.proto`, on the broker's event loop.

Nothing here is imported unless gRPC is on: it takes 11 MB, and a tenth of a second, to load.
"""

from quivermq.transports.grpc.listener import GrpcListener

__all__ = ["GrpcListener"]
