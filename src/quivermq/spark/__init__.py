"""Topics as Spark tables and streams, both ways, exactly once: the format `quiver`.

    from quivermq.spark import session

    spark = session()
    orders = spark.read.format("quiver").option("subscribe", "orders").load()

Knows the client and the lakehouse; must never know what brokers are made of. Needs
`quivermq[spark]`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quivermq.spark.sessions import register, session

__all__ = ["register", "session"]


def __getattr__(name: str) -> Any:
    """Spark is imported when it is needed: whoever looks at an option needs none."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import_module("pyspark.sql")
    except ImportError as error:
        raise ImportError(
            f"quivermq.spark needs PySpark: pip install 'quivermq[spark]' ({error})"
        ) from error
    return getattr(import_module("quivermq.spark.sessions"), name)
