"""Producing: one message, or many at once."""

from collections import deque
from collections.abc import Iterator, Mapping
from time import time
from typing import Any, Final

from quivermq.batches import Compression, Origin, encode_batch
from quivermq.client.cluster_map import Route
from quivermq.client.lanes import Lane, Lanes
from quivermq.client.laying import Laid, LayOut
from quivermq.client.outlets import Identity, Shipment, Stored
from quivermq.client.partitioner import partition_of
from quivermq.client.routing import Router
from quivermq.client.shipping import IN_FLIGHT_BATCHES_MAX, Links, Stream
from quivermq.client.values import BatchReceipt, Receipt
from quivermq.errors import InvalidRequest, QuiverError
