"""A FastStream application: orders come in as models, are billed, and go out as invoices.

Run as it is, it starts a broker of its own and shows what happens. With a broker at hand, run it
as FastStream's applications are run: `QUIVER_SERVERS=127.0.0.1:7600 faststream run
examples.faststream_app:app`, once the topics `orders` and `invoices` are there.
"""

import asyncio
import os

from faststream import FastStream
from pydantic import BaseModel

import quivermq
from quivermq.integrations.faststream import QuiverBroker, QuiverMessage, TestQuiverBroker
from quivermq.testing import Cluster


class Order(BaseModel):
    id: int
    cents: int


class Invoice(BaseModel):
    order: int
    text: str


broker = QuiverBroker(logger=None)  # of the brokers that QUIVER_SERVERS names, when it starts
app = FastStream(broker, logger=None)
mailed: set[int] = set()


@broker.subscriber("orders", group="billing", max_workers=8)
@broker.publisher("invoices")
async def bill(order: Order, message: QuiverMessage) -> Invoice:
    """What it returns is published; then the order is acknowledged."""
    if order.cents < 0 and message.raw_message.delivery_count == 1:
        raise ValueError("try again")  # the order is delivered again, later among the dead letters
    return Invoice(order=order.id, text=f"{order.cents / 100:.2f} to pay")


@broker.subscriber("invoices", group="mail", batch=True)
async def mail(invoices: list[Invoice]) -> None:
    """As many as are there, as one list."""
    for invoice in invoices:
        print(f"order {invoice.order}: {invoice.text}")
        mailed.add(invoice.order)
    if mailed >= {1, 2, 3}:
        app.exit()


async def try_in_memory() -> None:
    """How a test of these handlers looks: without a broker."""
    async with TestQuiverBroker(broker) as test:
        await test.publish(Order(id=0, cents=0), "orders")
        await bill.assert_called_once_with(Order(id=0, cents=0))


@app.after_startup
async def order() -> None:
    await broker.publish_batch(Order(id=1, cents=250), Order(id=2, cents=1999), topic="orders")
    await broker.publish(Order(id=3, cents=-100), "orders", key="customer-7", delay=0.5)


def main() -> None:
    asyncio.run(try_in_memory())
    with Cluster(nodes=1) as cluster:
        with quivermq.connect(cluster.servers) as client:
            client.create_topic("orders")
            client.create_topic("invoices")
        os.environ["QUIVER_SERVERS"] = cluster.servers
        asyncio.run(app.run())


if __name__ == "__main__":
    main()
