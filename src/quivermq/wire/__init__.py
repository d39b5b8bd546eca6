"""What travels: packets, and the requests and responses in them. Pure: bytes in, values out."""

from quivermq.wire.generated import quiver_pb2 as proto

__all__ = ["proto"]
