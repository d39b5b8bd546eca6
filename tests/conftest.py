"""What all tests share: property tests that do not depend on how busy the machine is."""

import os

from hypothesis import HealthCheck, settings

# In CI the same examples every time, so that a change is judged and not its luck; elsewhere new
# ones with every run.
settings.register_profile(
    "quiver",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("quiver")
