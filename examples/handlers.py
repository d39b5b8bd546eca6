"""Handlers of several topics work at a time, each customer in order, until the process is told to
end."""

import json
import os
import signal
import threading
import time
from collections import defaultdict

import quivermq
from quivermq.testing import Cluster

CUSTOMERS = ("ada", "bob", "cleo")
STEPS = 10


def main() -> None:
    seen: dict[str, list[int]] = defaultdict(list)
    all_done = threading.Event()

    def handle(message: quivermq.LeasedMessage) -> None:
        """Called by four threads at a time, but never twice for one customer."""
        event = message.data
        if event["step"] == 3 and message.delivery_count == 1:
            print(f"step 3 of {event['customer']} fails, and the later ones wait for it")
            raise ConnectionError("try again")
        seen[f"{message.topic} of {event['customer']}"].append(event["step"])
        if sum(map(len, seen.values())) == 2 * len(CUSTOMERS) * STEPS:
            all_done.set()

    def end_when_done() -> None:
        """Does what an orchestrator does when it stops a program."""
        all_done.wait(60)
        while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            time.sleep(0.01)  # until `run` watches for it
        os.kill(os.getpid(), signal.SIGTERM)

    with Cluster(nodes=1) as cluster, cluster.connect() as client:
        for topic in ("shop-orders", "shop-returns"):
            client.create_topic(topic, partitions=2)
            for step in range(STEPS):
                for customer in CUSTOMERS:
                    event = {"customer": customer, "step": step}
                    client.produce(topic, json.dumps(event).encode(), key=customer.encode())
        subscription = client.subscribe(
            "shop-.*",
            group="ledger",
            pattern=True,
            handler=handle,
            concurrency=4,
            ordered_by_key=True,
            deserializer="json",
        )
        threading.Thread(target=end_when_done, daemon=True).start()
        is_drained = subscription.run()
        print(f"ended by a signal, all handlers finished: {is_drained}")
        for title, steps in sorted(seen.items()):
            print(f"{title:22} {' '.join(map(str, steps))}")
        left = sum(client.group(topic, "ledger").lag for topic in ("shop-orders", "shop-returns"))
        print(f"left to do: {left}")


if __name__ == "__main__":
    main()
