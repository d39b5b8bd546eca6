"""A whole cluster in one thread from one seed: faults first, then healing and progress.

python -m tests.raft.cluster --seeds 1000        many seeds
python -m tests.raft.cluster --seed 17           one, with its story
"""

import argparse
import sys
from collections.abc import Callable
from random import Random

from quivermq.errors import NotLeader, Overloaded
from quivermq.raft import (
    APPEND_THREAD,
    APPLY_THREAD,
    Configuration,
    MembershipChange,
    MembershipRefused,
    Message,
    MessageKind,
    Options,
    Role,
    Snapshot,
    Transition,
    UnknownPeer,
    parse_changes,
)
from quivermq.testing.raft_text import message_text, status_text
from tests.raft.cluster_checks import Checker, Violation
from tests.raft.cluster_member import Crashed, Member

STEPS = 1200
IDS = range(1, 8)
HEALING_ROUNDS = 400


class World:
    """Members, a network that loses, repeats and reorders, and a checker that sees all."""

    def __init__(self, seed: int, *, steps: int = STEPS, story: bool = False) -> None:
        self.dice = Random(seed)
        self.seed = seed
        self.steps = steps
        self.story: list[str] | None = [] if story else None
        self.checker = Checker()
        self.network: list[Message] = []
        self.cut: set[tuple[int, int]] = set()
        self.proposals = 0
        self.loss = self.dice.choice([0.0, 0.05, 0.2])
        self.repetition = self.dice.choice([0.0, 0.1])
        self.reordering = self.dice.random() < 0.5
        options = self._draw_options()
        self.members = {
            member: Member(
                member,
                options,
                Random(self.dice.random()),
                self.checker.ready,
                self.checker.apply,
            )
            for member in IDS
        }
        self._found()
        for member in self.members.values():
            member.start()
            member.crash_rate = self.dice.choice([0.0, 0.002, 0.02])
        self.actions, self.weights = self._draw_actions()

    def run(self) -> None:
        """Faults, then healing; raises `Violation` or `BrokenInvariant`."""
        for _ in range(self.steps):
            self.dice.choices(self.actions, self.weights)[0]()
        self.heal()
        self._demand_progress()

    def heal(self) -> None:
        self.note("healing")
        self.cut = set()
        self.loss = self.repetition = 0.0
        for member in self.members.values():
            member.crash_rate = 0.0
            if member.node is None:
                self._forget_own_mail(member)
                member.start()

    def note(self, text: str) -> None:
        if self.story is not None:
            self.story.append(text)

    def _draw_options(self) -> Options:
        dice = self.dice
        return Options(
            election_ticks=6,
            heartbeat_ticks=2,
            prevote=dice.random() < 0.6,
            check_quorum=dice.random() < 0.6,
            async_storage=dice.random() < 0.5,
            message_bytes_max=dice.choice([1, 40, 1 << 20]),
            inflight_messages_max=dice.choice([1, 2, 256]),
            inflight_bytes_max=dice.choice([20, 1 << 20]),
            uncommitted_bytes_max=dice.choice([60, 1 << 20]),
            apply_bytes_max=dice.choice([1, 30, 1 << 20]),
            reads_pending_max=dice.choice([2, 1000]),
        )

    def _found(self) -> None:
        """Give the first members a common past."""
        voters = tuple(range(1, self.dice.choice([1, 3, 3, 5]) + 1))
        learners = (voters[-1] + 1,) if self.dice.random() < 0.3 else ()
        start = Snapshot(1, 1, Configuration(voters, (), learners), b"start")
        for member in (*voters, *learners):
            self.members[member].disk.install(start)

    def _draw_actions(self) -> tuple[list[Callable[[], None]], list[float]]:
        often = {self.tick: 12, self.handle_ready: 25, self.deliver: 40, self.work: 20}
        sometimes = {
            self.propose: 5,
            self.read: 4,
            self.change_membership: 4,
            self.transfer: 0.5,
            self.checkpoint: 3,
            self.report: 1,
            self.crash_one: 0.7,
            self.restart_one: 2,
            self.partition: 0.7,
            self.reconnect: 0.7,
            self.campaign: 1.5,
            self.forget_leader: 0.2,
        }
        drawn = {act: weight * self.dice.choice([0, 1, 3]) for act, weight in sometimes.items()}
        drawn[self.restart_one] = max(drawn[self.restart_one], 1)
        table = {**often, **drawn}
        return [*table], [*table.values()]

    def _any_up(self, wanted: Callable[[Member], object] = bool) -> Member | None:
        up = [m for m in self.members.values() if m.node is not None and wanted(m)]
        return self.dice.choice(up) if up else None

    def _on(self, member: Member | None, act: Callable[[Member], list[Message] | None]) -> None:
        """Let something happen to a member that is up, and look at the result."""
        if member is None or member.node is None:
            return
        try:
            self.network += act(member) or []
        except Crashed:
            self.note(f"{member.id} crashes")
            self.checker.after_crash(member)
        except (NotLeader, Overloaded, MembershipRefused, UnknownPeer) as refusal:
            self.note(f"{member.id} refuses: {refusal}")
        self.checker.after_step(member)

    def tick(self) -> None:
        self._on(self._any_up(), lambda member: member.node.tick())

    def handle_ready(self) -> None:
        self._on(self._any_up(lambda member: member.node.has_ready), self._ready_of)

    def _ready_of(self, member: Member) -> list[Message]:
        if self.story is not None and member.node and member.node.has_ready:
            self.note(f"{member.id} handles its Ready: {status_text(member.node.status())}")
        return member.handle_ready()

    def work(self) -> None:
        """Let a storage thread finish one piece of work."""
        member = self._any_up(lambda up: up.append_work or up.apply_work)
        if member and member.append_work and (self.dice.random() < 0.6 or not member.apply_work):
            self._on(member, Member.run_append_thread)
        elif member and member.apply_work:
            self._on(member, Member.run_apply_thread)

    def deliver(self) -> None:
        if not self.network:
            return
        position = self.dice.randrange(len(self.network)) if self.reordering else 0
        message = self.network[position]
        is_own = is_internal(message)
        if is_own:
            # What a member's storage says to it arrives once and in order.
            position = next(
                at
                for at, other in enumerate(self.network)
                if other.to == message.to and is_internal(other)
            )
            message = self.network[position]
        if is_own or self.dice.random() >= self.repetition:
            del self.network[position]
        is_lost = not is_own and self._is_lost(message)
        member = self.members[message.to]
        if message.kind is MessageKind.SNAPSHOT:
            arrived = not is_lost and member.node is not None
            self._report_snapshot(message, arrived=arrived)
        if is_lost:
            self.note(f"lost: {message_text(message)}")
            return
        if member.node is not None:
            self.note(f"delivered: {message_text(message)}")
            if message.kind is MessageKind.VOTE_REPLY and not message.reject:
                self.checker.vote(message.sender, message.term, message.to)
        self._on(member, lambda up: up.node.step(message))

    def _is_lost(self, message: Message) -> bool:
        return self.dice.random() < self.loss or (message.sender, message.to) in self.cut

    def _leader(self) -> Member | None:
        leaders = [
            member
            for member in self.members.values()
            if member.node and member.node.replica.role is Role.LEADER
        ]
        return max(leaders, key=lambda member: member.node.replica.term, default=None)

    def propose(self) -> None:
        # Now and then also to whoever only believes to lead.
        member = self._leader() if self.dice.random() < 0.8 else self._any_up()
        payloads = [b"p%d" % (self.proposals + extra) for extra in range(self.dice.choice([1, 3]))]
        self.proposals += len(payloads)
        self._on(member, lambda up: up.node.propose(*payloads))

    def read(self) -> None:
        context = b"r%d" % self.dice.getrandbits(60)
        self.checker.ask_read(context)
        self._on(self._any_up(), lambda up: up.node.read_index(context))

    def change_membership(self) -> None:
        dice = self.dice
        acts = [f"{dice.choice('vvvlrr')}{dice.choice(IDS)}" for _ in range(dice.choice([1, 1, 3]))]
        change = MembershipChange(parse_changes(" ".join(acts)), dice.choice([*Transition]))
        if dice.random() < 0.25:
            change = MembershipChange()
        self.note(f"proposing {change}")
        self._on(self._leader(), lambda up: up.node.propose_membership(change))

    def transfer(self) -> None:
        target = self.dice.choice(IDS)
        self._on(self._any_up(), lambda up: up.node.transfer_leader(target))

    def checkpoint(self) -> None:
        member = self._any_up()
        if member:
            member.take_checkpoint(compact=self.dice.random() < 0.7)

    def report(self) -> None:
        target = self.dice.choice(IDS)
        if self.dice.random() < 0.5:
            self._on(self._leader(), lambda up: up.node.report_unreachable(target))
        else:
            arrived = self.dice.random() < 0.5
            self._on(self._leader(), lambda up: up.node.report_snapshot(target, arrived=arrived))

    def _report_snapshot(self, message: Message, *, arrived: bool) -> None:
        """Whoever carries snapshots tells the sender how each transfer ended, as it must."""
        sender = self.members[message.sender]
        self._on(sender, lambda up: up.node.report_snapshot(message.to, arrived=arrived))

    def campaign(self) -> None:
        self._on(self._any_up(), lambda up: up.node.campaign())

    def forget_leader(self) -> None:
        self._on(self._any_up(), lambda up: up.node.forget_leader())

    def crash_one(self) -> None:
        member = self._any_up()
        if member:
            self.note(f"{member.id} crashes")
            member.crash()
            self.checker.after_crash(member)

    def restart_one(self) -> None:
        down = [member for member in self.members.values() if member.node is None]
        if down:
            member = self.dice.choice(down)
            self._forget_own_mail(member)
            self.note(f"{member.id} restarts")
            member.start()
            self.checker.after_step(member)

    def partition(self) -> None:
        """Cut some links, one-way or both ways."""
        side = {member for member in IDS if self.dice.random() < 0.5}
        one_way = self.dice.random() < 0.3
        self.cut = {(a, b) for a in IDS for b in IDS if (a in side) > (b in side)} | {
            (b, a) for a in IDS for b in IDS if not one_way and (a in side) > (b in side)
        }

    def reconnect(self) -> None:
        self.cut = set()

    def _forget_own_mail(self, member: Member) -> None:
        """What a member says to itself dies with its process."""
        self.network = [m for m in self.network if m.to != member.id or not is_internal(m)]

    def _settle(self) -> None:
        """One round without faults: time passes, everyone works, everything arrives in order."""
        for member in self.members.values():
            self._on(member, lambda up: up.node.tick())
            self._finish_work(member)
        for message in self._taken():
            self._on(self.members[message.to], lambda up, m=message: up.node.step(m))
            if message.kind is MessageKind.SNAPSHOT:
                self._report_snapshot(message, arrived=True)
        for member in self.members.values():
            self._finish_work(member)

    def _finish_work(self, member: Member) -> None:
        while member.node and (member.node.has_ready or member.append_work or member.apply_work):
            self._on(member, Member.handle_ready)
            if member.append_work:
                self._on(member, Member.run_append_thread)
            if member.apply_work:
                self._on(member, Member.run_apply_thread)

    def _taken(self) -> list[Message]:
        taken, self.network = self.network, []
        return taken

    def _demand_progress(self) -> None:
        """With everyone up and connected, a new proposal must reach every member."""
        # With a window of one entry a backlog takes a few rounds for each.
        longest = max(m.node.replica.log.last_index for m in self.members.values() if m.node)
        for round_ in range(HEALING_ROUNDS + 4 * longest):
            self._settle()
            leader = self._leader()
            if leader is None or not leader.node.replica.has_committed_in_term:
                continue
            if leader.configuration.is_joint and not leader.configuration.auto_leave:
                if round_ % 20 == 0:
                    self._on(leader, lambda up: up.node.propose_membership(MembershipChange()))
                continue
            if self._is_reached(leader):
                return
            if round_ % 20 == 0:
                self._on(leader, lambda up: up.node.propose(b"healed"))
        states = [status_text(m.node.status()) for m in self.members.values() if m.node]
        raise Violation("no progress after healing:\n" + "\n".join(states))

    def _is_reached(self, leader: Member) -> bool:
        """Everyone in the configuration applied something proposed after healing."""
        if leader.configuration.is_joint:
            return False
        members = [self.members[member] for member in leader.configuration.members]
        low = min(member.applied for member in members)
        known = self.checker.applied.get(low)
        return bool(known and bytes(known[0].data).startswith(b"healed"))


def is_internal(message: Message) -> bool:
    """Whether a member says this to itself, or its storage to it."""
    return message.sender in (message.to, APPEND_THREAD, APPLY_THREAD)


def story_of(seed: int, steps: int = STEPS) -> str:
    """Run a seed again and tell what happened up to its failure."""
    world = World(seed, steps=steps, story=True)
    try:
        world.run()
    except Exception as error:
        return "\n".join([*(world.story or [])[-60:], f"seed {seed}: {error}"])
    return f"seed {seed}: nothing went wrong, {world.checker.commit_seen} entries committed"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.raft.cluster", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS, help="steps with faults in each seed")
    parser.add_argument("--seed", type=int, help="tell the story of one seed")
    chosen = parser.parse_args(arguments)
    if chosen.seed is not None:
        print(story_of(chosen.seed, chosen.steps))
        return 0
    committed = reads = 0
    for seed in range(chosen.first, chosen.first + chosen.seeds):
        world = World(seed, steps=chosen.steps)
        try:
            world.run()
        except Exception as error:
            print(f"seed {seed} failed: {type(error).__name__}: {error}")
            return 1
        committed += world.checker.commit_seen
        reads += world.checker.reads_answered
    print(f"{chosen.seeds} seeds clean, {committed} entries committed, {reads} reads answered")
    return 0


if __name__ == "__main__":
    sys.exit(main())
