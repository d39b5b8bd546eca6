"""The session and the broker of the Spark tests serve these too."""

from tests.spark.conftest import _broker, client, servers, spark, topic

__all__ = ["_broker", "client", "servers", "spark", "topic"]
