"""A message that always fails is retried, becomes a dead letter, and is redriven after a fix."""

import logging
import threading

import quivermq
from quivermq.testing import Cluster


def main() -> None:
    logging.getLogger("quivermq").setLevel(logging.CRITICAL)  # the failures below are intended
    with Cluster(nodes=1) as cluster, cluster.connect() as client:
        client.create_topic(
            "orders",
            max_deliveries=3,
            # At once after the first failure, then after 0.1, 0.2, 0.4 ... seconds.
            retry=quivermq.Retry(first=0.0, base=0.1, longest=1.0),
        )
        client.produce_many("orders", [b"10 apples", b"no pears", b"20 plums"])

        def bill(message: quivermq.LeasedMessage) -> None:
            print(f"delivery {message.delivery_count} of {message.value!r}")
            amount, fruit = message.value.decode().split()
            print(f"  billed {int(amount)} {fruit}")  # ValueError: 'no' is no number

        # A return of the handler acknowledges the message, an exception fails it.
        with client.subscribe("orders", group="billing", handler=bill):
            cluster.wait_until(lambda: bool(client.dead_letters("orders")), "nothing died")

        (letter,) = client.dead_letters("orders")
        print(f"dead letter {letter.value!r}: {letter.reason}, group {letter.group}")
        print(f"  came from offset {letter.original_offset} of {letter.topic}")

        is_back = threading.Event()

        def bill_carefully(message: quivermq.LeasedMessage) -> None:
            print(f"billed {message.value!r} at last")
            is_back.set()

        print(f"put back: {client.redrive('orders')}")
        with client.subscribe("orders", group="billing", handler=bill_carefully):
            is_back.wait(20)
        print(f"dead letters left: {len(client.dead_letters('orders'))}")


if __name__ == "__main__":
    main()
