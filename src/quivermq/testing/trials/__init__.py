"""Trials of clusters, real and simulated: users under faults, and judges of what they record.

The checkers keep their own records and share nothing with the brokers but the reading of frames.
"""

from quivermq.testing.trials.client_load import ClientLoad
from quivermq.testing.trials.client_trial import (
    fetch_copy,
    read_stored_copy,
    trial,
    verify,
    wait_until_level,
)
from quivermq.testing.trials.consumer import ONLY_ACKS, ConsumerPlan
from quivermq.testing.trials.consumer_load import ConsumerLoad, ConsumerProcess
from quivermq.testing.trials.consumer_trial import (
    check_group,
    group_trial,
    lead_by,
    read_dead_letters,
)
from quivermq.testing.trials.group_history import (
    Fate,
    GroupHistory,
    SettleAction,
    SettleCall,
    Spot,
)
from quivermq.testing.trials.history import History, TopicPartition
from quivermq.testing.trials.journal import read_journal

__all__ = [
    "ONLY_ACKS",
    "ClientLoad",
    "ConsumerLoad",
    "ConsumerPlan",
    "ConsumerProcess",
    "Fate",
    "GroupHistory",
    "History",
    "SettleAction",
    "SettleCall",
    "Spot",
    "TopicPartition",
    "check_group",
    "fetch_copy",
    "group_trial",
    "lead_by",
    "read_dead_letters",
    "read_journal",
    "read_stored_copy",
    "trial",
    "verify",
    "wait_until_level",
]
