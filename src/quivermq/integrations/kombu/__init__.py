"""The transport of kombu, and so of Celery, over QuiverMQ: `broker_url = "quiver://..."`.

To import this package makes the schemes `quiver` and `quivers` (TLS) known to kombu, which has no
entry points for transports. It uses the client as any program would.
"""

try:
    from kombu.transport import TRANSPORT_ALIASES
except ImportError as error:
    raise ImportError(
        "quivermq.integrations.kombu needs kombu: pip install 'quivermq[celery]'"
    ) from error

from quivermq.integrations.kombu.transport import Transport

for _scheme in ("quiver", "quivers"):
    TRANSPORT_ALIASES.setdefault(_scheme, f"{__name__}:Transport")

__all__ = ["Transport"]
