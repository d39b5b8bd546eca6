"""Topics as Spark tables and streams, both ways, exactly once: the format `quiver`.

    from quivermq.spark import session

    spark = session()
    orders = spark.read.format("quiver").option("subscribe", "orders").load()

Knows the client and the lakehouse; must never know what brokers are made of. Needs `quivermq[spark]`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quivermq.spark.session import register, session

__all__ = ["register", "session"]


def __getattr__(name: str) -> Any:
    """Spark is imported when it is needed: whoever looks at an option needs none."""
    if name in __all__:
        from quivermq.spark import session as module  # noqa: PLC0415

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
