"""Urgent messages overtake waiting ones, and no priority starves."""

from collections import Counter

from quivermq.testing import Cluster

NAMES = {0: "ordinary", 3: "important", 7: "urgent"}


def main() -> None:
    with Cluster(nodes=1) as cluster, cluster.connect() as client:
        client.create_topic("mail")
        for priority, name in NAMES.items():
            client.produce_many("mail", [name.encode()] * 100, priority=priority)

        first = client.poll("mail", group="readers", max_messages=1)
        print(f"sent last, delivered first: {first[0].value.decode()}")
        client.ack(first)

        # A quarter of the deliveries is reserved for the levels below the highest that waits.
        shares: Counter[int] = Counter()
        for _ in range(40):
            messages = client.poll("mail", group="readers", max_messages=1)
            shares.update(message.priority for message in messages)
            client.ack(messages)
        for priority in sorted(shares, reverse=True):
            print(f"{shares[priority]:3} of 40 deliveries were {NAMES[priority]}")

        # Within a level it is first come, first served.
        rest = client.poll("mail", group="readers", max_messages=1000)
        offsets = [message.offset for message in rest if message.priority == 0]
        print(f"{len(rest)} wait, ordinary ones in order: {offsets == sorted(offsets)}")
        client.ack(rest)


if __name__ == "__main__":
    main()
