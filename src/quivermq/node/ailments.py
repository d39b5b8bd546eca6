"""Words for replicas that cannot take part, with what to do about it."""

from quivermq.cluster import node_of
from quivermq.replica import Replica


def repair_text(replica: Replica, member: int) -> str:
    """Of a replica that neither votes nor leads because its log is damaged; "" of any other."""
    if not replica.is_repairing:
        return ""
    helpers = sorted({node_of(peer) for peer in replica.configuration_on_disk if peer != member})
    if not helpers:
        return f"{replica.damage_text}. No other broker has a copy: {_restore()}"
    named = " or ".join(f"broker {node}" for node in helpers)
    return (
        f"{replica.damage_text}. This replica neither votes nor leads until {named} has given it "
        "what is missing: keep them running, or start them"
    )


def lost_text(reason: str, member: int) -> str:
    """Of a replica that cannot be repaired, because it is not known what it had."""
    node = node_of(member)
    return (
        f"{reason}. This replica does not take part any more: {_restore()}. If others have copies, "
        f"start broker {node} with an empty data directory, and run `quiver cluster replace {node}`"
    )


def on_broker(member: int, ailment: str) -> str:
    """With the broker where to look."""
    return f"broker {node_of(member)}: {ailment}" if ailment else ""


def _restore() -> str:
    return "stop the broker and restore the file, if you have it elsewhere"
