"""The pages of the portal, one module a page: what it shows, and the actions on it."""

from typing import Final

from quivermq.portal.pages import (
    cluster,
    groups,
    letters,
    messages,
    overview,
    pipelines,
    signing_in,
    topics,
    users,
)

ROUTERS: Final = tuple(
    page.router
    for page in (
        signing_in, overview, topics, messages, groups, letters, cluster, pipelines, users,
    )
)  # fmt: skip
