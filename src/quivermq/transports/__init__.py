"""Transports of a broker: each turns bytes into requests and calls the one `Service`."""

from quivermq.transports.server import GatewayServer, Server

__all__ = ["GatewayServer", "Server"]
