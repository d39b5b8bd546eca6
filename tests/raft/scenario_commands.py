"""What each scenario command does to the cluster, and what it prints."""

from collections.abc import Callable, Iterable
from contextlib import suppress

from quivermq.errors import NotLeader, Overloaded
from quivermq.raft import (
    NO_LIMIT,
    Configuration,
    MembershipChange,
    MembershipRefused,
    Message,
    MessageKind,
    Options,
    Snapshot,
    Transition,
    parse_changes,
)
from quivermq.testing.raft_text import KIND_NAMES, member_text, message_text, status_text
from tests.raft.scenario_cluster import Cluster, Member
from tests.raft.scenario_grammar import Directive
from tests.raft.scenario_pure import Memberships, Quorums

KINDS = {name: kind for kind, name in KIND_NAMES.items()}
LEVELS = ("debug", "info", "warn", "error", "fatal", "none")

SWITCHES = {
    "async-storage-writes": "async_storage",
    "prevote": "prevote",
    "checkquorum": "check_quorum",
    "step-down-on-removal": "step_down_on_removal",
    "forward-proposals": "forward_proposals",
}
LIMITS = {
    "inflight": "inflight_messages_max",
    "max-inflight": "inflight_messages_max",
    "max-inflight-msgs": "inflight_messages_max",
    "max-inflight-bytes": "inflight_bytes_max",
    "max-committed-size-per-ready": "apply_bytes_max",
    "max-size-per-msg": "message_bytes_max",
    "max-uncommitted-size": "uncommitted_bytes_max",
    "max-uncommitted-entries-size": "uncommitted_bytes_max",
    "election-tick": "election_ticks",
    "heartbeat-tick": "heartbeat_ticks",
}


class UnknownCommand(ValueError):
    """The file asks for something that this runner does not know."""


class Commands:
    """All commands by name, on one cluster, one quorum and one configuration."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.level = "debug"
        quorums, memberships = Quorums(), Memberships()
        self.table: dict[str, Callable[[Directive], str]] = {
            "committed": quorums.committed,
            "vote": quorums.vote,
            "simple": memberships.simple,
            "enter-joint": memberships.enter_joint,
            "leave-joint": memberships.leave_joint,
            "_breakpoint": lambda _: "",
            "add-nodes": self.add_nodes,
            "campaign": lambda d: self._each(d.ids, lambda m: m.node.campaign()),
            "compact": self.compact,
            "crash": lambda d: self._each(d.ids, lambda m: self.cluster.crash(m.id)),
            "deliver-msgs": self.deliver,
            "forget-leader": lambda d: self._each(d.ids, lambda m: m.node.forget_leader()),
            "heal": self.heal,
            "log-level": self.log_level,
            "partition": self.partition,
            "process-append-thread": lambda d: self._work(
                d, "processing append thread", self.cluster.run_append_thread
            ),
            "process-apply-thread": lambda d: self._work(
                d, "processing apply thread", self.cluster.run_apply_thread
            ),
            "process-ready": lambda d: self._work(d, "handling Ready", self.cluster.handle_ready),
            "propose": self.propose,
            "propose-conf-change": self.propose_membership,
            "raft-log": lambda d: self.cluster.log_text(self._member(d)),
            "raft-state": self.raft_state,
            "read-index": self.read_index,
            "report-snapshot": self.report_snapshot,
            "report-unreachable": self.report_unreachable,
            "restart": self.restart,
            "send-snapshot": self.send_snapshot,
            "set-randomized-election-timeout": self.set_timeout,
            "stabilize": self.stabilize,
            "status": self.status,
            "tick-election": lambda d: self._tick(d, "election_ticks"),
            "tick-heartbeat": lambda d: self._tick(d, "heartbeat_ticks"),
            "transfer-leadership": self.transfer,
        }

    def run(self, directive: Directive) -> str:
        """What the command prints at the current level of detail."""
        handler = self.table.get(directive.command)
        if handler is None:
            raise UnknownCommand(f"unknown command {directive.command!r}")
        before = self.level
        if directive.command == "stabilize":
            self.level = directive.option("log-level", self.level)
        refusal = ""
        try:
            output = handler(directive)
        except (NotLeader, Overloaded):
            output, refusal = "", "raft proposal dropped"
        quiet = self.level == "none" and directive.command != "log-level"
        self.level = before if directive.command == "stabilize" else self.level
        return refusal or ("ok" if quiet else output) or "ok"

    def add_nodes(self, directive: Directive) -> str:
        given = directive.options
        voters = tuple(sorted(int(word) for word in given.get("voters", ())))
        learners = tuple(sorted(int(word) for word in given.get("learners", ())))
        index = int(directive.option("index", "0"))
        start = None
        if voters or learners or index or "content" in given:
            if index <= 1:
                return "index must be specified as > 1 due to bootstrap"
            configuration = Configuration(voters, (), learners)
            start = Snapshot(index, 1, configuration, directive.option("content").encode())
        options = options_of(directive)
        for _ in range(directive.ids[0]):
            self.cluster.add(options, start)
        return ""

    def compact(self, directive: Directive) -> str:
        member = self._member(directive)
        member.storage.compact(directive.ids[1])
        return self.cluster.log_text(member)

    def deliver(self, directive: Directive) -> str:
        kind = KINDS[directive.option("type")] if "type" in directive.options else None
        dropped = [int(word) for word in directive.options.get("drop", ())]
        if both := set(directive.ids) & set(dropped):
            raise ValueError(f"messages to {sorted(both)} cannot be both delivered and dropped")
        lines: list[str] = []
        for argument in directive.arguments:
            if not argument.values:
                lines += self.cluster.deliver(int(argument.key), kind)
            elif argument.key == "drop":
                for word in argument.values:
                    lines += self.cluster.deliver(int(word), kind, drop=True)
        return "\n".join(lines) or "no messages"

    def heal(self, _directive: Directive) -> str:
        self.cluster.cut_off = frozenset()
        return ""

    def partition(self, directive: Directive) -> str:
        """Cut the given members off from the rest, not from each other."""
        self.cluster.cut_off = frozenset(directive.ids)
        return ""

    def log_level(self, directive: Directive) -> str:
        level = directive.words[0].lower()
        if level not in LEVELS:
            raise ValueError(f"log levels are {', '.join(LEVELS)}; not {level}")
        self.level = level
        return ""

    def propose(self, directive: Directive) -> str:
        member, payload = directive.words
        self.cluster.members[int(member)].node.propose(payload.encode())
        return ""

    def propose_membership(self, directive: Directive) -> str:
        transition = Transition(directive.option("transition", "auto"))
        if directive.option("v1") == "true":
            transition = Transition.SIMPLE
        change = MembershipChange(parse_changes(directive.input), transition)
        try:
            self._member(directive).node.propose_membership(change)
        except MembershipRefused as refusal:
            return str(refusal)
        return ""

    def raft_state(self, _directive: Directive) -> str:
        members = self.cluster.members.values()
        return "\n".join(
            status_text(member.node.status()) if member.is_up else f"{member.id}: down"
            for member in members
        )

    def read_index(self, directive: Directive) -> str:
        member, context = directive.words
        self.cluster.members[int(member)].node.read_index(context.encode())
        return ""

    def report_snapshot(self, directive: Directive) -> str:
        arrived = directive.option("status", "ok") == "ok"
        self._member(directive).node.report_snapshot(directive.ids[1], arrived=arrived)
        return ""

    def report_unreachable(self, directive: Directive) -> str:
        self._member(directive).node.report_unreachable(directive.ids[1])
        return ""

    def restart(self, directive: Directive) -> str:
        for member in directive.ids:
            self.cluster.restart(member)
        return ""

    def send_snapshot(self, directive: Directive) -> str:
        sender, to = directive.ids
        member = self.cluster.members[sender]
        term = member.node.status().hard_state.term
        snapshot = member.storage.snapshot()
        message = Message(MessageKind.SNAPSHOT, to, sender, term, snapshot=snapshot)
        self.cluster.network.append(message)
        return message_text(message)

    def set_timeout(self, directive: Directive) -> str:
        self._member(directive).node.replica.election_timeout = int(directive.option("timeout"))
        return ""

    def status(self, directive: Directive) -> str:
        progress = self._member(directive).node.status().progress
        return "\n".join(f"{member}: {member_text(known)}" for member, known in progress.items())

    def transfer(self, directive: Directive) -> str:
        node = self.cluster.members[int(directive.option("from"))].node
        # Without a leader to ask, the wish is forgotten.
        with suppress(NotLeader):
            node.transfer_leader(int(directive.option("to")))
        return ""

    def stabilize(self, directive: Directive) -> str:
        """Let the given members work until none of them has anything to do."""
        lines: list[str] = []
        while True:
            before = len(lines)
            for member in self.cluster.live(directive.ids):
                if member.node.has_ready:
                    lines += section(member, "handling Ready", [self.cluster.handle_ready(member)])
            for member in self.cluster.live(directive.ids):
                if self.cluster.mail(member.id):
                    texts = self.cluster.deliver(member.id)
                    lines += section(member, "receiving messages", texts)
            for member in self.cluster.live(directive.ids):
                if member.append_work:
                    texts = self._drain(member, "append_work", self.cluster.run_append_thread)
                    lines += section(member, "processing append thread", texts)
            for member in self.cluster.live(directive.ids):
                if member.apply_work:
                    texts = self._drain(member, "apply_work", self.cluster.run_apply_thread)
                    lines += section(member, "processing apply thread", texts)
            if len(lines) == before:
                return "\n".join(lines)

    def _drain(self, member: Member, queue: str, work: Callable[[Member], str]) -> list[str]:
        texts = []
        while getattr(member, queue):
            texts.append(work(member))
        return texts

    def _work(self, directive: Directive, title: str, work: Callable[[Member], str]) -> str:
        members = self.cluster.live(directive.ids)
        if len(directive.ids or self.cluster.members) == 1:
            return "\n".join(map(work, members))
        lines: list[str] = []
        for member in members:
            lines += section(member, title, [work(member)])
        return "\n".join(lines)

    def _tick(self, directive: Directive, option: str) -> str:
        member = self._member(directive)
        for _ in range(getattr(member.options, option)):
            member.node.tick()
        member.node.validate()
        return ""

    def _each(self, ids: list[int], act: Callable[[Member], None]) -> str:
        for member in ids:
            act(self.cluster.members[member])
        return ""

    def _member(self, directive: Directive) -> Member:
        return self.cluster.members[directive.ids[0]]


def section(member: Member, title: str, texts: Iterable[str]) -> list[str]:
    lines = [f"  {line}" for text in texts for line in text.split("\n")]
    return [f"> {member.id} {title}", *lines]


def options_of(directive: Directive) -> Options:
    """Options as the files mean them: no limits and nothing switched on unless given."""
    chosen: dict[str, int | bool] = {
        "election_ticks": 3,
        "heartbeat_ticks": 1,
        "prevote": False,
        "check_quorum": False,
        "step_down_on_removal": False,
        "forward_proposals": True,
        "message_bytes_max": NO_LIMIT,
        "inflight_messages_max": NO_LIMIT,
        "inflight_bytes_max": NO_LIMIT,
        "uncommitted_bytes_max": NO_LIMIT,
        "apply_bytes_max": NO_LIMIT,
    }
    for key, values in directive.options.items():
        value = values[0]
        if key in SWITCHES:
            chosen[SWITCHES[key]] = value == "true"
        elif key in LIMITS:
            chosen[LIMITS[key]] = int(value)
        elif key == "disable-conf-change-validation":
            chosen["validate_membership"] = value != "true"
        elif key == "read-only":
            chosen["lease_reads"] = value == "lease-based"
        elif key not in ("voters", "learners", "index", "content", "crdb-version"):
            raise UnknownCommand(f"unknown option {key!r} of add-nodes")
    return Options(**chosen)
