"""The web portal: pages that show a cluster and act on it, for people.

    from quivermq.portal import PortalSettings, serve

    serve(PortalSettings(servers="127.0.0.1:7600", listen="127.0.0.1:8080"))

A process of its own that uses brokers as any user would: the asyncio client, and `/metrics`.
Brokers never import it. Pages are made here, by Jinja; `static/` has the style and the little
JavaScript that keeps them fresh, and nothing is loaded from elsewhere.
"""

from quivermq.portal.app import create_app
from quivermq.portal.server import PortalSettings, serve

__all__ = ["PortalSettings", "create_app", "serve"]
