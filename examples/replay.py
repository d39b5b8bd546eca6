"""A group seeks back and does its work again; a reader reads any part without disturbing it."""

import time
from datetime import UTC, datetime

import quivermq
from quivermq.testing import Cluster


def total(client: quivermq.Client) -> int:
    """Add up and acknowledge all messages that wait for the group."""
    found = 0
    while messages := client.poll("payments", group="sums", wait=0):
        found += sum(int(message.value) for message in messages)
        client.ack(messages)
    return found


def main() -> None:
    with Cluster(nodes=1) as cluster, cluster.connect() as client:
        client.create_topic("payments")
        client.produce_many("payments", [b"1", b"2", b"3"])
        time.sleep(0.01)
        moment = datetime.now(UTC)
        client.produce_many("payments", [b"40", b"50"])

        print(f"the first time: {total(client)}")
        print(f"nothing is left: {total(client)}")

        client.seek("payments", group="sums", to="earliest")
        print(f"all again: {total(client)}")
        client.seek("payments", group="sums", to=moment)
        print(f"since that moment: {total(client)}")
        client.seek("payments", group="sums", to=4)
        print(f"from offset 4: {total(client)}")

        # Reading takes no messages from groups, and needs none.
        values = [int(message.value) for message in client.read("payments", start=1, stop=4)]
        left = client.group("payments", "sums").lag
        print(f"offsets 1 to 3 hold {values}; the group has {left} to do")


if __name__ == "__main__":
    main()
