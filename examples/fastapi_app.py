"""A FastAPI application with a client of QuiverMQ: a handler produces, a task consumes.

Run as it is, it starts a broker of its own and asks itself. With a broker at hand, run it as
FastAPI's applications are run: `QUIVER_SERVERS=127.0.0.1:7600 uvicorn examples.fastapi_app:app`,
once the topic `orders` is there.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel

import quivermq.aio
from quivermq.aio import AsyncClient, AsyncLeasedMessage
from quivermq.testing import Cluster


class Order(BaseModel):
    item: str
    count: int = 1


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One client for the whole application: it is opened before the first request, and closed
    after the last, when the messages that it did not handle go back to their group."""
    app.state.totals = {}

    async def count(message: AsyncLeasedMessage) -> None:
        order = Order.model_validate_json(message.value)
        totals = app.state.totals
        totals[order.item] = totals.get(order.item, 0) + order.count

    async with quivermq.aio.connect(os.environ.get("QUIVER_SERVERS")) as client:
        app.state.quiver = client
        # Acknowledged when `count` returns; delivered again, later a dead letter, when it raises.
        async with client.subscribe("orders", group="totals", handler=count, concurrency=4):
            yield


app = FastAPI(lifespan=lifespan)


async def quiver(request: Request) -> AsyncClient:
    client: AsyncClient = request.app.state.quiver
    return client


Quiver = Annotated[AsyncClient, Depends(quiver)]


@app.post("/orders", status_code=202)
async def take_order(order: Order, client: Quiver) -> dict[str, Any]:
    """Durable on a majority of brokers before the answer is sent."""
    try:
        receipt = await client.produce("orders", order.model_dump_json(), key=order.item)
    except quivermq.QuiverError as error:
        # No broker could store it in time: whoever asked may try again.
        raise HTTPException(503 if error.retriable else 500, str(error)) from error
    return {"partition": receipt.partition, "offset": receipt.offset}


@app.get("/totals")
async def totals(request: Request) -> dict[str, int]:
    found: dict[str, int] = request.app.state.totals
    return found


@app.get("/ready")
async def ready(client: Quiver) -> dict[str, int]:
    """For whoever starts and stops this application."""
    brokers = (await client.cluster()).nodes
    return {"brokers": sum(broker.alive for broker in brokers)}


async def ask() -> None:
    """Ask the application, without a server in between."""
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://shop") as web,
    ):
        print("ready:", (await web.get("/ready")).json())
        for order in ({"item": "apples"}, {"item": "pears", "count": 2}, {"item": "apples"}):
            print("stored:", (await web.post("/orders", json=order)).json())
        while (counted := (await web.get("/totals")).json()) != {"apples": 2, "pears": 2}:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        print("counted:", counted["apples"], "apples")


def main() -> None:
    with Cluster(nodes=1) as cluster:
        with cluster.connect() as client:
            client.create_topic("orders")
        os.environ["QUIVER_SERVERS"] = cluster.servers
        asyncio.run(ask())


if __name__ == "__main__":
    main()
