"""QuiverMQ beside Redis Streams, NATS JetStream, RabbitMQ and Apache Kafka: the same work in turns.

`python -m benchmarks.compare` measures; `benchmarks/RESULTS.md` says how each system is used.
"""

from benchmarks.compare.redis_streams import Redis
from benchmarks.compare.system import LOOPBACK, NotInstalled

__all__ = ["LOOPBACK", "NotInstalled", "Redis"]
