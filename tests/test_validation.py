"""Errors of pydantic, in our words."""

from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from quivermq.validation import explain


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")

    number: int = Field(2, ge=2, lt=9)
    share: float = 0.5
    flag: bool = False
    text: str = Field("x", max_length=5)
    choice: Literal["a", "b"] = "a"
    names: list[str] = []
    table: dict[str, int] = {}
    odd: int = 1

    @field_validator("odd")
    @classmethod
    def _is_odd(cls, value: int) -> int:
        if value % 2 == 0:
            raise ValueError(f"{value} is even: write an odd number")
        return value


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"number": "x"}, "must be a whole number, not 'x'"),
        ({"number": 2.5}, "must be a whole number, not 2.5"),
        ({"number": None}, "must be a whole number, not None"),
        ({"number": 1}, "must be at least 2, not 1"),
        ({"number": 9}, "must be less than 9, not 9"),
        ({"share": "half"}, "must be a number, not 'half'"),
        ({"flag": "perhaps"}, "must be true or false, not 'perhaps'"),
        ({"text": 3}, "must be text, not 3"),
        ({"text": "123456"}, "must be at most 5 long, not '123456'"),
        ({"choice": "c"}, "must be 'a' or 'b', not 'c'"),
        ({"names": "x"}, "must be a list, not 'x'"),
        ({"table": [1]}, "must be a table of names and values"),
        ({"number": "1" * 100 + "x"}, "must be a whole number"),
        ({"odd": 2}, "2 is even: write an odd number"),
        ({"other": 2}, "is not known here"),
    ],
)
def test_each_error_is_a_sentence_without_its_subject(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Settings.model_validate(given)
    assert explain(raised.value.errors()[0]) == told


def test_what_is_secret_is_not_shown() -> None:
    with pytest.raises(ValidationError) as raised:
        Settings.model_validate({"number": "hush"})
    assert explain(raised.value.errors()[0], show=False) == "must be a whole number"
