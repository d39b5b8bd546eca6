"""Trials of real clusters: load while faults happen, histories of it, and their checkers.

The checkers keep their own records and share nothing with the brokers but the reading of frames.
"""

from quivermq.testing.trials.client_load import Load
from quivermq.testing.trials.client_trial import fetched, settle, stored_copy, trial, verify
from quivermq.testing.trials.consumer import ONLY_ACKS, Plan
from quivermq.testing.trials.consumer_load import ConsumerLoad, ConsumerProcess
from quivermq.testing.trials.consumer_trial import check_group, group_trial, lead_by, letters_of
from quivermq.testing.trials.group_history import Act, Fate, GroupHistory, Said, Spot, journal_lines
from quivermq.testing.trials.history import History, Place

__all__ = [
    "ONLY_ACKS",
    "Act",
    "ConsumerLoad",
    "ConsumerProcess",
    "Fate",
    "GroupHistory",
    "History",
    "Load",
    "Place",
    "Plan",
    "Said",
    "Spot",
    "check_group",
    "fetched",
    "group_trial",
    "journal_lines",
    "lead_by",
    "letters_of",
    "settle",
    "stored_copy",
    "trial",
    "verify",
]
