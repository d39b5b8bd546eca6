"""A broker: runs replicas on real disks, sockets and clocks, and serves requests.

Knows everything below it; must never know which transport a request came through.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quivermq.node.access_control import AccessControl
    from quivermq.node.broker import Broker
    from quivermq.node.callers import BROKER, Caller, bearer_token
    from quivermq.node.cluster_secret import Challenge
    from quivermq.node.counters import Counters, DoorTraffic, Histogram
    from quivermq.node.data_dir import SET_ASIDE, damaged_files
    from quivermq.node.disk_thread import DiskThread
    from quivermq.node.exposure import check_exposure
    from quivermq.node.garbage import GarbagePolicy
    from quivermq.node.gateway.gateway import Gateway
    from quivermq.node.host import Host
    from quivermq.node.hosted_replica import HostedReplica
    from quivermq.node.listener import Accepted, address_of, close_listener, listening_at
    from quivermq.node.loop_watch import (
        BLOCKED_FACTOR,
        HELD,
        Calls,
        LoopWatch,
        Stalls,
        calls_of,
        waited_s,
    )
    from quivermq.node.machine import Machine
    from quivermq.node.service import Cancellable, Service
    from quivermq.node.slow_imports import refuse_pandas
    from quivermq.node.tasks import end_tasks
    from quivermq.node.time_slices import Turn
    from quivermq.node.tls_listener import TlsListener

# By module, so that a tool that needs one part does not load a whole broker.
_PLACES = {
    "BLOCKED_FACTOR": "loop_watch",
    "BROKER": "callers",
    "HELD": "loop_watch",
    "SET_ASIDE": "data_dir",
    "Accepted": "listener",
    "AccessControl": "access_control",
    "Broker": "broker",
    "Caller": "callers",
    "Calls": "loop_watch",
    "Cancellable": "service",
    "Challenge": "cluster_secret",
    "Counters": "counters",
    "DoorTraffic": "counters",
    "DiskThread": "disk_thread",
    "GarbagePolicy": "garbage",
    "Gateway": "gateway.gateway",
    "Host": "host",
    "Histogram": "counters",
    "HostedReplica": "hosted_replica",
    "LoopWatch": "loop_watch",
    "Machine": "machine",
    "Service": "service",
    "Stalls": "loop_watch",
    "TlsListener": "tls_listener",
    "Turn": "time_slices",
    "address_of": "listener",
    "close_listener": "listener",
    "bearer_token": "callers",
    "calls_of": "loop_watch",
    "check_exposure": "exposure",
    "damaged_files": "data_dir",
    "end_tasks": "tasks",
    "listening_at": "listener",
    "refuse_pandas": "slow_imports",
    "waited_s": "loop_watch",
}

__all__ = [
    "BLOCKED_FACTOR",
    "BROKER",
    "HELD",
    "SET_ASIDE",
    "Accepted",
    "AccessControl",
    "Broker",
    "Caller",
    "Calls",
    "Cancellable",
    "Challenge",
    "Counters",
    "DiskThread",
    "DoorTraffic",
    "GarbagePolicy",
    "Gateway",
    "Histogram",
    "Host",
    "HostedReplica",
    "LoopWatch",
    "Machine",
    "Service",
    "Stalls",
    "TlsListener",
    "Turn",
    "address_of",
    "bearer_token",
    "calls_of",
    "check_exposure",
    "close_listener",
    "damaged_files",
    "end_tasks",
    "listening_at",
    "refuse_pandas",
    "waited_s",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = __import__(f"{__name__}.{_PLACES[name]}", fromlist=[name])
    value = globals()[name] = getattr(module, name)
    return value
