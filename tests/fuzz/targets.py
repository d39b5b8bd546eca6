"""All targets, by name."""

from tests.fuzz.arrow_targets import ARROW_TARGETS
from tests.fuzz.file_targets import FILE_TARGETS
from tests.fuzz.http_target import HTTP_TARGETS
from tests.fuzz.target import Target
from tests.fuzz.text_targets import TEXT_TARGETS
from tests.fuzz.wire_targets import WIRE_TARGETS

TARGETS: dict[str, Target] = {
    **WIRE_TARGETS,
    **ARROW_TARGETS,
    **FILE_TARGETS,
    **HTTP_TARGETS,
    **TEXT_TARGETS,
}
