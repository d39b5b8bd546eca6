"""Addresses as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.addresses import join_address, split_address
from quivermq.errors import InvalidRequest


@given(
    st.sampled_from(["localhost", "127.0.0.1", "::1", "fe80::1", "a.b-c"]), st.integers(0, 65_535)
)
def test_what_is_joined_can_be_split(host: str, port: int) -> None:
    assert split_address(join_address(host, port)) == (host, port)


@pytest.mark.parametrize(
    "text",
    ["", "7600", "host", ":7600", "host:", "host:-1", "host:65536", "::1:7600", "a b:1", "a/b:1"],
)
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r":7600"):
        split_address(text)
