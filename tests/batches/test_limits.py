"""Limits are refused where they are set, before anything relies on them."""

import pytest

from quivermq.batches import Limits


@pytest.mark.parametrize("field", ["message_bytes_max", "batch_bytes_max", "headers_bytes_max"])
@pytest.mark.parametrize("value", [0, -1])
def test_a_limit_that_is_not_positive_is_refused_by_name(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=field):
        Limits(**{field: value})


def test_a_batch_cannot_be_allowed_to_outgrow_arrow_offsets() -> None:
    assert Limits(batch_bytes_max=2**31 - 1).batch_bytes_max == 2**31 - 1
    with pytest.raises(ValueError, match="2 GiB"):
        Limits(batch_bytes_max=2**31)
