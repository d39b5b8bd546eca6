"""Names of topics and groups."""

import pytest

from quivermq.errors import InvalidRequest
from quivermq.names import check_group_name, check_topic_name


def test_names_are_checked() -> None:
    for good in ("a", "A.b-c_9", "x" * 200, "...", "a_"):
        check_topic_name(good)
        check_group_name(good)
    for bad in ("", ".", "..", "a/b", "a b", "ä", "x" * 201, "a\n", "a\0"):
        with pytest.raises(InvalidRequest, match="name"):
            check_topic_name(bad)
        with pytest.raises(InvalidRequest, match="name"):
            check_group_name(bad)
    with pytest.raises(InvalidRequest, match="for a flag: '-x'"):
        check_topic_name("-x")
    check_topic_name("-x", internal=True)
    with pytest.raises(InvalidRequest, match="reserved"):
        check_topic_name("_quiver")
    check_topic_name("_quiver", internal=True)
    check_topic_name("_spark.1f2e")
    check_topic_name("_pipelines")
    check_group_name("_mine")
