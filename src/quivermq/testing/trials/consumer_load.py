"""Runs consumers of a shared group while a cluster is disturbed: in threads and in processes.

with ConsumerLoad(cluster, Plan("orders", "billing"), threads=3) as consumers:
    ...
    consumers.wait_progress()
    consumers.drain()
"""

import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self, cast

import quivermq
from quivermq.errors import QuiverError
from quivermq.testing import Violation
from quivermq.testing.cluster import Cluster
from quivermq.testing.trials.consumer import ONLY_ACKS, ConsumerPlan, TrialConsumer
from quivermq.testing.trials.group_history import GroupHistory, Spot
from quivermq.testing.trials.journal import read_journal, replay

_PROGRESS_S: Final = 30.0
_DRAIN_S: Final = 60.0
_JOIN_S: Final = 60.0


class ConsumerProcess:
    """A consumer that can be killed and paused."""

    def __init__(
        self, servers: str, plan: ConsumerPlan, journal: Path, timeout: float = 12.0
    ) -> None:
        self.journal = journal
        what = {
            "servers": servers,
            "journal": str(journal),
            "plan": asdict(plan),
            "timeout": timeout,
        }
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "quivermq.testing.consumer_process", json.dumps(what)],
            stdin=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """As `subprocess` has it: minus the signal that ended it; None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """SIGKILL: it keeps its leases until they expire."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """SIGTERM, and wait: it releases its leases."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(_JOIN_S)

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def tell(self) -> None:
        """Let it settle the messages of one poll: see `waits_for_word`."""
        words = cast("IO[str]", self._process.stdin)
        words.write("go\n")
        words.flush()

    @property
    def delivered(self) -> set[Spot]:
        """Messages that it received."""
        return {
            (one.place, one.offset)
            for call in read_journal(self.journal)
            if call.method == "record_deliveries"
            for one in call.arguments[0]
        }

    def close(self) -> None:
        self.kill()
        cast("IO[str]", self._process.stdin).close()


class ConsumerLoad:
    """Use it in a `with`: at the end all consumers have finished what they began."""

    def __init__(
        self, cluster: Cluster, plan: ConsumerPlan, *, threads: int = 3, timeout: float = 12.0
    ):
        self.history = GroupHistory(plan.group)
        self.plan = plan
        self.failures: list[QuiverError] = []
        """Errors that consumers in threads got after all their client's retries."""
        self.processes: list[ConsumerProcess] = []
        self._cluster = cluster
        self._timeout = timeout
        self._folder = Path(tempfile.mkdtemp(prefix="quiver-consumers-"))
        self._stop = threading.Event()
        self._broken: BaseException | None = None
        self._threads: list[threading.Thread] = []
        for number in range(threads):
            self.add_thread(f"thread {number}")

    def add_thread(self, name: str, **changes: Any) -> None:
        """One more consumer in a thread."""
        plan = replace(self.plan, name=name, **changes)
        thread = threading.Thread(target=self._run, args=(plan,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def add_process(self, **changes: Any) -> ConsumerProcess:
        """One more consumer in a process."""
        number = len(self.processes)
        plan = replace(self.plan, name=f"process {number}", **changes)
        journal = self._folder / f"{number}.journal"
        process = ConsumerProcess(self._cluster.servers, plan, journal, self._timeout)
        self.processes.append(process)
        return process

    def _run(self, plan: ConsumerPlan) -> None:
        try:
            with quivermq.connect(self._cluster.servers, timeout=self._timeout) as client:
                consumer = TrialConsumer(client, self.history, plan)
                consumer.failures = self.failures
                consumer.run(self._stop.is_set)
        except BaseException as error:
            self._broken = error

    def wait_progress(self, messages: int = 20, timeout: float = _PROGRESS_S) -> None:
        """Wait until threads have acknowledged so many more."""
        goal = self.history.acked_count + messages
        self.wait_until(
            lambda: self.history.acked_count >= goal, "nothing is acknowledged any more", timeout
        )

    def wait_until(
        self, condition: Callable[[], bool], failure: str, timeout: float = _PROGRESS_S
    ) -> None:
        """Wait for a condition; raises the error of a consumer that broke."""
        self._cluster.wait_until(lambda: self._broken is not None or condition(), failure, timeout)
        self._raise_broken()

    def drain(self, timeout: float = _DRAIN_S) -> None:
        """Stop the consumers; have one more acknowledge all that is left, until the group has no
        unfinished messages."""
        self.stop()
        plan = replace(self.plan, name="drain", habits=ONLY_ACKS, max_messages=1000, wait=0.2)
        with quivermq.connect(self._cluster.servers, timeout=self._timeout) as client:
            consumer = TrialConsumer(client, self.history, plan)
            last = None

            def is_done() -> bool:
                nonlocal last
                messages = consumer.poll()
                if messages:
                    consumer.settle(messages)
                    return False
                last = client.group(plan.topic, plan.group)
                return all(
                    part.lag + part.in_flight + part.delayed == 0 for part in last.partitions
                )

            try:
                self._cluster.wait_until(is_done, "the group has unfinished messages", timeout)
            except BaseException as error:
                error.add_note(f"{last} {last and last.partitions}")
                raise

    def stop(self) -> None:
        """Stop polling, and wait for calls under way."""
        self._stop.set()
        for process in self.processes:
            if process.is_running:
                process.resume()
                process.stop()
        for thread in self._threads:
            thread.join(_JOIN_S)
            if thread.is_alive():
                raise Violation(f"I9: a consumer did not come back within {_JOIN_S:.0f} s")
        for process in self.processes:
            replay(process.journal, {"group": self.history})
            process.close()
        self.processes.clear()
        self._raise_broken()

    def _raise_broken(self) -> None:
        if self._broken is not None:
            raise self._broken

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        try:
            if error is None:
                self.stop()
        finally:
            for process in self.processes:
                process.close()
            for journal in self._folder.iterdir():
                journal.unlink()
            self._folder.rmdir()
