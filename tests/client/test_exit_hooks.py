"""Programs that end without closing their clients: they end cleanly and soon, however they end,
and do what can still be done.

Each way of ending is a process of its own. With `slow_exit` it stays, after the interpreter is gone
and before its threads are, for as many seconds as its exit status says, as it does when large
libraries are unloaded: a thread that calls into Python by then crashes the process, and surely so.
"""

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Collection
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

import quivermq
from tests.client.brokers import BrokerThread
from tests.client.stand_in import StandIn

PREAMBLE = """
import asyncio, atexit, ctypes, multiprocessing, os, signal, sys, threading, time

def slow_exit():
    libc = ctypes.CDLL(None)
    libc.on_exit(libc.sleep, None)

def tell_end():
    print(f"ended after {time.monotonic() - ending:.3f}", flush=True)

atexit.register(tell_end)  # first, so called last: behind the client
ending = float("inf")

import quivermq, quivermq.aio

kept = []

def held_subscription(client, topic, **options):
    '''Its loop sleeps while the interpreter is taken apart, and comes back within two seconds.'''
    kept.append(client.subscribe(topic, group="held", **options))
    return kept[-1]

def main(address, topic):
"""

POSTAMBLE = """
if __name__ == "__main__":
    found = main(*sys.argv[1:])
    ending = time.monotonic()
    sys.exit(found)
"""


numbers = count()


class Case(NamedTuple):
    script: str
    status: int = 0
    says: str = ""
    """On standard error; nothing else may be there."""
    longest: float = 3.0
    """Seconds that the end may take."""


CASES = {
    "exit": Case(
        """
        client = quivermq.connect(address)
        subscription = held_subscription(client, topic, handler=print)
        time.sleep(0.1)
        slow_exit()
        return 3
        """,
        status=3,
    ),
    "exception": Case(
        """
        client = quivermq.connect(address)
        subscription = held_subscription(client, topic)
        producer = client.producer()
        slow_exit()
        sys.excepthook = lambda *_: sys.exit(3)
        raise ValueError
        """,
        status=3,
    ),
    "interrupt": Case(
        """
        client = quivermq.connect(address)
        subscription = held_subscription(client, topic)
        sys.excepthook = lambda *_: None
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
        """,
        status=-2,
    ),
    "interrupt at the end": Case(
        """
        client = quivermq.connect(address)
        client.produce(topic, b"v")
        begun = threading.Event()
        subscription = held_subscription(
            client, topic, handler=lambda _: (begun.set(), time.sleep(60)))
        begun.wait()
        def interrupt(*_):
            raise KeyboardInterrupt
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        slow_exit()
        return 3
        """,
        status=3,
        longest=0.9,
    ),
    "several clients": Case(
        """
        clients = [quivermq.connect(address) for _ in range(3)]
        held = [held_subscription(client, topic) for client in clients]
        held += [client.producer() for client in clients]
        slow_exit()
        return 3
        """,
        status=3,
    ),
    "daemon threads inside calls": Case(
        """
        client = quivermq.connect(address)
        def consume():
            for _ in client.consumer(topic, group="sticky"): pass
        def subscribe():
            for _ in held_subscription(client, topic): pass
        def poll():
            while True: client.poll(topic, group="polled", wait=30)
        def send():
            producer = client.producer()
            while True: producer.send(topic, b"v").result()
        for call in (consume, subscribe, poll, send):
            threading.Thread(target=call, daemon=True).start()
        time.sleep(0.5)
        slow_exit()
        return 3
        """,
        status=3,
    ),
    "threads that go on": Case(
        """
        client = quivermq.connect(address)
        producer = client.producer()
        def work():
            time.sleep(0.5)
            producer.send(topic, b"of a thread")
        threading.Thread(target=work).start()
        """,
    ),
    "a thousand messages": Case(
        """
        kept.append(quivermq.connect(address).producer(linger=60))
        for number in range(1000): kept[0].send(topic, b"%d" % number)
        """,
    ),
    "garbage": Case(
        """
        client = quivermq.connect(address)
        def send():
            producer = client.producer(linger=60)
            for number in range(1000): producer.send(topic, b"%d" % number)
        send()
        for _ in range(500):
            if client.topic(topic).message_count == 1000: return 0
            time.sleep(0.01)
        return 1
        """,
    ),
    "nobody stores": Case(
        """
        global producer
        from tests.client.stand_in import HANG, StandIn
        stand_in = StandIn()
        stand_in.script("produce", *[HANG] * 100)
        producer = quivermq.connect(stand_in.address).producer()
        for number in range(1000): producer.send("t", b"%d" % number)
        time.sleep(0.05)
        """,
        says="a producer was not closed, and 1,000 messages to t may not be stored",
        longest=3.0,
    ),
    "broker gone": Case(
        """
        global client, subscription
        from tests.client.group_stand_in import GroupStandIn
        stand_in = GroupStandIn()
        client = quivermq.connect(stand_in.address)
        client.produce_many("t", [b"v"] * 100)
        polled = client.poll("t", group="polled", max_messages=10)
        subscription = client.subscribe("t", group="g")
        message = next(subscription)
        stand_in.close()
        """,
        longest=1.0,
    ),
    "leases": Case(
        """
        client = quivermq.connect(address)
        client.produce_many(topic, [b"%d" % number for number in range(100)])
        client.poll(topic, group="polled", max_messages=10, visibility=600)
        subscription = client.subscribe(topic, group="subscribed", visibility=600)
        next(subscription)
        asleep = client.subscribe(
            topic, group="handled", handler=lambda _: time.sleep(0.3), visibility=600)
        time.sleep(0.1)
        """,
        longest=2.0,
    ),
    "sticky": Case(
        """
        client = quivermq.connect(address)
        client.produce(topic, b"v")
        consumer = client.consumer(topic, group="sticky", session=60)
        next(consumer)
        """,
    ),
    "asyncio": Case(
        """
        global client, producer
        async def work():
            global client, producer
            client = await quivermq.aio.connect(address)
            subscription = client.subscribe(topic, group="g")
            producer = client.producer(linger=60)
            for number in range(1000): await producer.send(topic, b"%d" % number)
        asyncio.run(work())
        """,
        says="1,000 messages to TOPIC may not be stored",
    ),
    "asyncio garbage": Case(
        """
        async def work():
            client = await quivermq.aio.connect(address)
            producer = client.producer(linger=60)
            for number in range(1000): await producer.send(topic, b"%d" % number)
            del producer
            for _ in range(500):
                if (await client.topic(topic)).message_count == 1000: return 0
                await asyncio.sleep(0.01)
            return 1
        return asyncio.run(work())
        """,
    ),
    "fork": Case(
        """
        client = quivermq.connect(address)
        with client.subscribe(topic, group="g") as subscription, client.producer() as producer:
            producer.send(topic, b"first")
            next(subscription).ack()
            child = os.fork()
            if child == 0:
                slow_exit()
                sys.exit(3)
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 3, status
            producer.send(topic, b"second")
            message = next(subscription)
            assert message.value == b"second"
            message.ack()
        """,
        longest=0.5,
    ),
    "fork that goes on": Case(
        """
        client = quivermq.connect(address)
        with client.producer() as producer:
            producer.send(topic, b"first").result()
            child = os.fork()
            if child == 0:
                own = client.producer(linger=60)
                own.send(topic, b"of the child")
                slow_exit()
                sys.exit(3)
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 3, status
        """,
    ),
    "late": Case(
        """
        global client
        client = quivermq.connect(address)
        def late():
            try: client.producer()
            except quivermq.errors.InvalidRequest as error: assert "program is ending" in str(error)
            else: os._exit(9)
            client.produce(topic, b"late")
        atexit.unregister(tell_end)
        from quivermq.client.exit_hooks import endings
        atexit.unregister(endings.end)
        atexit.register(tell_end)
        atexit.register(late)
        atexit.register(endings.end)
        """,
    ),
} | {
    f"multiprocessing {way}": Case(
        f"""
        context = multiprocessing.get_context({way!r})
        children = [context.Process(target=child_work, args=(address, topic)) for _ in range(2)]
        for child in children: child.start()
        for child in children: child.join()
        assert [child.exitcode for child in children] == [0, 0], children
        """
    )
    for way in ("fork", "spawn", "forkserver")
}

CHILD_WORK = """
def child_work(address, topic):
    client = quivermq.connect(address)
    producer = client.producer(linger=60)
    for number in range(500): producer.send(topic, b"%d" % number)
    subscription = client.subscribe(topic, group=f"g{os.getpid()}")
"""

STORED = {
    "a thousand messages": 1000,
    "garbage": 1000,
    "asyncio garbage": 1000,
    "threads that go on": 1,
    "fork": 2,
    "fork that goes on": 2,
    "late": 1,
    "multiprocessing fork": 1000,
    "multiprocessing spawn": 1000,
    "multiprocessing forkserver": 1000,
}


class Program(NamedTuple):
    process: subprocess.Popen[str]
    topic: str


class Programs:
    """Runs programs together, since most of them only wait."""

    def __init__(self, address: str, folder: Path) -> None:
        self._address = address
        self._folder = folder

    def end(self, names: Collection[str]) -> dict[str, str]:
        """Run programs to their ends, and check these; the topic of each."""
        with quivermq.connect(self._address) as client:
            started = {name: self._start(client, CASES[name]) for name in names}
            try:
                for name, program in started.items():
                    if check_end(CASES[name], program) > CASES[name].longest:
                        # Among so many at once it may have waited for a processor.
                        again = self._start(client, CASES[name])
                        assert check_end(CASES[name], again) <= CASES[name].longest, name
            finally:
                for program in started.values():
                    program.process.kill()
                    program.process.communicate()
        return {name: program.topic for name, program in started.items()}

    def _start(self, client: quivermq.Client, case: Case) -> Program:
        topic = f"ending-{next(numbers)}"
        client.create_topic(topic)
        script = self._folder / f"{topic}.py"
        body = textwrap.indent(textwrap.dedent(case.script), "    ")
        script.write_text(PREAMBLE + body + CHILD_WORK + POSTAMBLE)
        process = subprocess.Popen(
            [sys.executable, script, self._address, topic],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        return Program(process, topic)


def check_end(case: Case, program: Program) -> float:
    """Check how a program ends; the seconds that its end took, by its own account."""
    out, err = program.process.communicate(timeout=60)
    assert program.process.returncode == case.status, (case, err)
    said = [line for line in err.splitlines() if "ResourceWarning" not in line]
    assert len(said) == bool(case.says), (case, err)
    assert case.says.replace("TOPIC", program.topic) in err
    told = [line for line in out.splitlines() if line.startswith("ended after")]
    return max((float(line.split()[-1]) for line in told), default=0.0)


@pytest.fixture
def programs(broker: BrokerThread, tmp_path: Path) -> Programs:
    return Programs(broker.address, tmp_path)


def test_programs_whose_interpreter_is_gone_before_its_threads_end_cleanly(
    programs: Programs,
) -> None:
    slow = [name for name, case in CASES.items() if "slow_exit" in case.script]
    # More at once would take the interpreter apart so slowly that threads come back in the middle.
    programs.end([name for name in slow if name not in STORED])


def test_programs_end_cleanly_however_they_end(programs: Programs) -> None:
    slow = {name for name, case in CASES.items() if "slow_exit" in case.script}
    programs.end(CASES.keys() - slow - STORED.keys() - {"leases", "sticky"})


def test_what_producers_hold_is_stored_when_the_program_ends(
    programs: Programs, real: quivermq.Client
) -> None:
    topics = programs.end(STORED.keys())
    assert {name: real.topic(topic).message_count for name, topic in topics.items()} == STORED


def test_leases_of_a_program_that_ended_are_given_back(
    programs: Programs, real: quivermq.Client
) -> None:
    topic = programs.end(["leases"])["leases"]
    for group, left in [("polled", 100), ("subscribed", 100), ("handled", 99)]:
        found = real.poll(topic, group=group, max_messages=1000, wait=0)
        assert len(found) == left, group
        real.release(found)


def test_a_sticky_member_of_a_program_that_ended_has_left(
    programs: Programs, real: quivermq.Client
) -> None:
    topic = programs.end(["sticky"])["sticky"]
    began = time.monotonic()
    with real.consumer(topic, group="sticky", session=60) as consumer:
        # What it was given last was not done, for all that is known.
        assert next(consumer).offset == 0
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("work", "module"),
    [("", "concurrent.futures.thread"), ("client.producer()", "pandas")],
    ids=["what cannot be imported at the end", "what takes too long at the end"],
)
def test_what_arrow_needs_for_its_first_array_is_imported_in_time(
    work: str, module: str, stand_in: StandIn
) -> None:
    pytest.importorskip("pandas")
    code = f"""
import sys, quivermq
with quivermq.connect({stand_in.address!r}) as client:
    {work or "pass"}
    sys.exit({module!r} not in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
