"""gRPC with TLS: the same certificates as every other listener, the latest at each handshake."""

import asyncio
import ssl
from pathlib import Path

import grpc
import grpc.aio

from quivermq.addresses import split_address
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from tests.tls.stage import Certificates
from tests.transports.grpc_stage import Stub, eventually, make_topic, refusal, store
from tests.transports.stage import PATIENCE_S, on_served_loop, serving


def trusting(certificates: Certificates) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(Path(certificates.ca).read_bytes())


@on_served_loop
async def test_only_clients_that_trust_the_broker_and_use_tls_get_in(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "ours")
    foreign = Certificates(tmp_path / "foreign")
    changes = {"grpc": "127.0.0.1:0", **certificates.settings()}
    async with serving(tmp_path / "data", **changes) as server:
        for authority, is_trusted in ((certificates, True), (foreign, False), (None, False)):
            if authority is None:
                channel = grpc.aio.insecure_channel(server.grpc)
            else:
                trusted = trusting(authority)
                channel = grpc.aio.secure_channel(server.grpc, trusted)
            async with channel:
                stub = Stub(channel)
                if is_trusted:
                    await make_topic(stub)
                    assert (await store(stub, b"x")).positions[0].offset == 0
                else:
                    error = await refusal(stub.Cluster(api.ClusterRequest(), timeout=PATIENCE_S))
                    assert error.code() == grpc.StatusCode.UNAVAILABLE


@on_served_loop
async def test_a_new_certificate_is_shown_while_calls_go_on(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "ours")
    certificates.make("turning")
    settings = certificates.settings("turning")
    changes = {"grpc": "127.0.0.1:0", "tls_reload_ms": 20, **settings}
    async with serving(tmp_path / "data", **changes) as server:
        trusted = trusting(certificates)
        async with grpc.aio.secure_channel(server.grpc, trusted) as channel:
            stub = Stub(channel)
            await stub.Cluster(api.ClusterRequest(), timeout=PATIENCE_S)
            before = await shown(server.grpc)
            certificates.make("turning")

            async def is_new() -> bool:
                return await shown(server.grpc) != before

            await eventually(is_new)
            # On the connection that was there.
            await stub.Cluster(api.ClusterRequest(), timeout=PATIENCE_S)


async def shown(address: str) -> str:
    return await asyncio.to_thread(ssl.get_server_certificate, split_address(address))
