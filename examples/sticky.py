"""Events of a customer stay in order while members of a sticky group come and go."""

from collections import defaultdict

import quivermq
from quivermq.testing import Cluster

CUSTOMERS = [b"ada", b"ben", b"cleo", b"dora", b"emil", b"fay"]


def send(client: quivermq.Client, numbers: range) -> None:
    """Produce one event of each customer for every number. One key is always in one partition."""
    for number in numbers:
        client.produce_many("events", [b"%d" % number] * len(CUSTOMERS), keys=CUSTOMERS)


def main() -> None:
    seen: dict[bytes, list[int]] = defaultdict(list)

    def take(consumer: quivermq.Consumer) -> None:
        # The next poll marks these as done; until then their partitions do not move.
        for message in consumer.poll(wait=0.1):
            seen[message.key or b""].append(int(message.value))

    with Cluster(nodes=1) as cluster, cluster.connect() as client:
        client.create_topic("events", partitions=4)
        send(client, range(5))
        with client.consumer("events", group="ledger", mode="sticky") as first:
            take(first)
            print(f"alone, the first member has partitions {first.assignment}")

            with client.consumer("events", group="ledger", mode="sticky") as second:
                while len(second.assignment) < 2:
                    take(first)
                    take(second)
                print(f"with a second, it keeps {first.assignment}")
                print(f"and the second has {second.assignment}")
                send(client, range(5, 10))
                while sum(map(len, seen.values())) < 10 * len(CUSTOMERS):
                    take(first)
                    take(second)

            while len(first.assignment) < 4:  # the second left
                take(first)
            print(f"alone again, it has {first.assignment}")

    for customer in CUSTOMERS:
        print(f"{customer.decode():5}", *seen[customer])


if __name__ == "__main__":
    main()
