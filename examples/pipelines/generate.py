"""Generate data for the pipelines here: orders, clicks, dead letters, and a table of customers.

    quiver up &
    python examples/pipelines/generate.py                  # all of it, once
    python examples/pipelines/generate.py --per-second 50  # then more orders and clicks, for ever

The same seed makes the same data. Some orders come late, and some cannot be parsed.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa

import quivermq

HERE = Path(__file__).parent
SERVERS = "127.0.0.1:7600"
START = datetime(2026, 3, 1, 12, tzinfo=UTC)
COUNTRIES = ["DE", "FR", "IN", "NL", "US"]
PAGES = ["/", "/search", "/shoes", "/hats", "/basket", "/paid"]
REASONS = ["card expired", "card stolen", "no funds"]
CUSTOMERS = 200


def orders(count: int, seed: int = 1, start: datetime = START) -> Iterator[bytes]:
    """Yield orders: about three a second, up to 30 s late; two of a hundred cannot be parsed."""
    dice = random.Random(seed)
    at = start
    for number in range(count):
        at += timedelta(milliseconds=dice.randrange(0, 700))
        late = timedelta(seconds=dice.randrange(0, 30) if dice.random() < 0.1 else 0)
        order = {
            "order_id": number,
            # A few of these are missing in the table of customers.
            "customer": dice.randrange(CUSTOMERS + 5),
            "country": dice.choice(COUNTRIES),
            "cents": dice.randrange(100, 20_000),
            "at": (at - late).isoformat(),
        }
        if number % 100 == 50:
            yield b"<order/>"
        elif number % 100 == 75:
            yield json.dumps(order | {"cents": "a lot"}).encode()
        else:
            yield json.dumps(order).encode()


def clicks(count: int, seed: int = 2, start: datetime = START) -> Iterator[tuple[bytes, bytes]]:
    """Yield (visitor, click): a few clicks each, then a pause longer than a session."""
    dice = random.Random(seed)
    moments: list[tuple[datetime, int]] = []
    for visitor in range(max(1, count // 20)):
        at = start + timedelta(seconds=dice.randrange(0, 3600))
        for _ in range(20):
            moments.append((at, visitor))
            away = dice.random() < 0.2
            at += timedelta(seconds=dice.randrange(1200, 3600) if away else dice.randrange(1, 240))
    for at, visitor in sorted(moments)[:count]:
        click = {"visitor": visitor, "page": dice.choice(PAGES), "at": at.isoformat()}
        yield str(visitor).encode(), json.dumps(click).encode()


def customers(seed: int = 3) -> pa.Table:
    """Make the table of customers: number, name and level."""
    dice = random.Random(seed)
    numbers = range(CUSTOMERS)
    return pa.table(
        {
            "customer": pa.array(numbers, pa.int64()),
            "name": [f"customer {number}" for number in numbers],
            "level": [dice.choice(["gold", "silver", "plain"]) for _ in numbers],
        }
    )


def fail_payments(client: quivermq.Client, count: int = 30, seed: int = 4) -> None:
    """Produce payments and reject some of them, which become dead letters with a reason."""
    dice = random.Random(seed)
    client.create_topic("payments", max_deliveries=3)
    client.produce_many("payments", [f"payment {number}".encode() for number in range(count)])
    done = refused = 0
    while done < count:
        for message in client.poll("payments", group="cashier", max_messages=count, wait=1.0):
            done += 1
            if dice.random() < 0.5:
                message.reject(dice.choice(REASONS))
                refused += 1
            else:
                message.ack()
    # The broker moves them to the dead-letter topic in the background.
    while len(client.dead_letters("payments", limit=count)) < refused:
        time.sleep(0.05)


def fill(client: quivermq.Client, table: Path, *, count: int = 3_000, payments: int = 30) -> None:
    """Create all that the four pipelines read."""
    from deltalake import write_deltalake  # noqa: PLC0415  (only for this)

    client.create_topic("orders", partitions=2)
    client.create_topic("clicks", partitions=2)
    client.produce_many("orders", list(orders(count)))
    visitors, values = zip(*clicks(count), strict=True)
    client.produce_many("clicks", values, visitors)
    fail_payments(client, payments)
    write_deltalake(str(table), customers(), mode="overwrite")


def keep_on(client: quivermq.Client, per_second: float) -> None:
    """Produce more orders and clicks every second, until Ctrl-C."""
    for seed in range(1_000_000):
        begun = datetime.now(UTC)
        client.produce_many("orders", list(orders(max(1, round(per_second)), seed, begun)))
        visitors, values = zip(*clicks(max(1, round(per_second)), seed, begun), strict=True)
        client.produce_many("clicks", values, visitors)
        time.sleep(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--servers", default=SERVERS)
    parser.add_argument("--count", type=int, default=3_000, help="orders, and clicks")
    parser.add_argument("--table", type=Path, default=HERE / "tables" / "customers")
    parser.add_argument("--per-second", type=float, default=0.0, help="go on with so many")
    given = parser.parse_args()
    with quivermq.connect(given.servers) as client:
        fill(client, given.table, count=given.count)
        print(f"{given.count:,} orders and clicks, 30 payments, {CUSTOMERS} customers")
        if given.per_second:
            print(f"{given.per_second:g} orders and clicks a second, until Ctrl-C")
            keep_on(client, given.per_second)


if __name__ == "__main__":
    main()
