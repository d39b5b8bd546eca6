"""Start three brokers and kill the leader: the client goes on without an error."""

from quivermq.testing import Cluster


def main() -> None:
    with Cluster(nodes=3) as cluster, cluster.connect() as client:
        client.create_topic("orders")
        client.produce("orders", b"first")

        leader = cluster.leader("orders")
        cluster.nodes[leader].kill()
        print(f"node {leader} leads, and is killed")

        receipt = client.produce("orders", b"second")
        print(f"stored at offset {receipt.offset} by node {cluster.leader('orders')}")
        print([message.value for message in client.read("orders")])


if __name__ == "__main__":
    main()
