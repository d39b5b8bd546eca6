"""Limits of what is proposed, of producers, and of the catalog."""

from typing import Final

from quivermq.batches import encode_batch
from quivermq.errors import OutOfSequence, Overloaded, QuiverError, TooLarge
from quivermq.queue import producers as producers_module
from quivermq.queue.producers import Bounds
from quivermq.replica import Changed, Produced, Result
from tests.limits.stage import Scenario, origin

ONE: Final = encode_batch([b"."])


class Producers(Scenario):
    """As many batches and producers are remembered as may be, and more come."""

    name = "producers"
    limits = ("queue/producers.py:BATCHES_MAX", "queue/producers.py:PRODUCERS_MAX")

    def fill(self) -> None:
        stage = self.stage
        batches = stage.limit("queue.producers", "BATCHES_MAX", 200)
        self.most = stage.limit("queue.producers", "PRODUCERS_MAX")
        stage._put(producers_module, "BOUNDS", Bounds(batches=batches, producers=self.most))
        each = batches // self.most + 1
        self.each = each
        stage.produce(
            origin(ONE, producer_id=producer, producer_epoch=1, sequence=sequence)
            for producer in range(1, self.most + 101)
            for sequence in range(each)
        )

    def is_full(self) -> None:
        stage = self.stage
        live = stage.leader.replica._live
        assert live is not None
        assert len(live.partition.producers) <= self.most
        newest = origin(ONE, producer_id=self.most + 100, producer_epoch=1, sequence=self.each - 1)
        (repeat,) = stage.attempt([newest])
        assert isinstance(repeat, Produced)
        assert repeat.is_repeat
        oldest = origin(ONE, producer_id=1, producer_epoch=1, sequence=self.each)
        (refused,) = stage.attempt([oldest])
        assert isinstance(refused, OutOfSequence)
        assert refused.may_be_forgotten

    def go_on(self) -> None:
        stage = self.stage
        stage.produce(
            origin(ONE, producer_id=producer, producer_epoch=2)
            for producer in range(1, self.most // 4)
        )
        self_next = origin(ONE, producer_id=self.most + 100, producer_epoch=1, sequence=self.each)
        stage.produce([self_next])


class Uncommitted(Scenario):
    """As much waits for a commit as may, in requests, bytes and reads; nobody can commit it."""

    name = "uncommitted"
    limits = (
        "replica/settings.py:proposals_max",
        "replica/settings.py:uncommitted_bytes_max",
        "raft/options.py:uncommitted_bytes_max",
        "replica/settings.py:reads_max",
        "raft/options.py:reads_pending_max",
    )

    def fill(self) -> None:
        stage = self.stage
        self.requests = stage.setting("proposals_max", 100)
        self.size = stage.setting("uncommitted_bytes_max", 20_000)
        self.reads = stage.setting("reads_max")
        stage.produce([ONE] * 10)

    def wait(self, body_bytes: int) -> list[Result]:
        """Fill a leader that nobody hears until it refuses, then let another one lead."""
        stage = self.stage
        stage.group.tick(3)
        leader, group = stage.leader, stage.group
        group.isolate(leader.member)
        frame = encode_batch([b"." * body_bytes])
        tokens = []
        for _ in range(self.requests + 10):
            tokens.append(group.token())
            leader.replica.produce(tokens[-1], frame, group.now_ms)
            group.settle()
        reads = [group.token() for _ in range(self.reads + 10)]
        for token in reads:
            leader.replica.read(token)
        group.settle()
        refused = [leader.answers[token] for token in (*tokens, *reads) if token in leader.answers]
        assert {type(one) for one in refused} == {Overloaded}
        assert sum(token in leader.answers for token in reads) == 10
        assert 10 <= sum(token in leader.answers for token in tokens) < self.requests
        stage.change_leader()
        found = [leader.answers.pop(token) for token in (*tokens, *reads)]
        assert not any(isinstance(one, Produced | Changed) for one in found)
        assert all(isinstance(one, QuiverError) for one in found), "all are told"
        return found

    def is_full(self) -> None:
        self.wait(1)
        # A batch fits a message to a peer; so many of them that their bytes are the limit.
        self.wait(2 * self.size // self.requests)

    def go_on(self) -> None:
        stage = self.stage
        stage.produce([ONE] * 10)
        assert stage.poll() is not None


class Catalog(Scenario):
    """The catalog holds as much as it may, written by changes as large as one may be."""

    name = "catalog"
    limits = ("replica/settings.py:catalog_bytes_max", "queue/catalog.py:CHANGE_BYTES_MAX")

    def fill(self) -> None:
        stage = self.stage
        change = stage.limit("queue.catalog", "CHANGE_BYTES_MAX", 2_000)
        most = stage.setting("catalog_bytes_max", 20_000)
        self.each = change // 8
        self.keys = 0
        value = {"text": "." * (self.each - 100)}
        while True:
            put = {f"key/{self.keys + at}": value for at in range(7)}
            answer = self.change(put)
            if answer != Changed():
                break
            self.keys += 7
        assert isinstance(answer, TooLarge), answer
        assert self.keys * self.each > most // 2

    def change(self, put: dict[str, object], delete: tuple[str, ...] = ()) -> Result:
        stage = self.stage
        token, leader = stage.group.token(), stage.leader
        catalog = leader.replica.catalog
        assert catalog is not None
        act = leader.replica.change_catalog
        now_ms = stage.group.now_ms
        stage.timed("change", lambda: act(token, catalog.version, put, delete, now_ms))
        stage.group.settle()
        return leader.answers.pop(token)

    def is_full(self) -> None:
        refused = self.change({"more": "." * 7 * self.each})
        assert isinstance(refused, TooLarge)
        assert "delete first" in str(refused)
        refused = self.change({"more": "." * 9 * self.each})
        assert isinstance(refused, TooLarge)
        assert "make several" in str(refused)

    def go_on(self) -> None:
        assert self.change({}, tuple(f"key/{at}" for at in range(7))) == Changed()
        assert self.change({"more": "." * 5 * self.each}) == Changed()
