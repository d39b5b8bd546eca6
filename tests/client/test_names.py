"""The public names: all there, and quick to import."""

import subprocess
import sys

import pytest

import quivermq
from quivermq import errors
from quivermq.errors import QuiverError


@pytest.mark.parametrize("name", quivermq.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(quivermq, name) is not None
    assert name in dir(quivermq)


def test_every_error_is_public() -> None:
    tree = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, QuiverError)
    }
    assert tree <= set(quivermq.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        quivermq.nonsense  # noqa: B018  (asking is the test)


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, quivermq; quivermq.TopicNotFound; "
        "heavy = {'pyarrow', 'google.protobuf', 'asyncio', 'pydantic'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("module", ["quivermq", "quivermq.aio"])
def test_a_program_has_arrow_before_its_first_message(module: str) -> None:
    # Not in an event loop, nor at the end of the program, where nothing can be imported.
    code = (
        f"import sys, quivermq, {module} as module\n"
        "try: module.connect('127.0.0.1:1', timeout=0.01)\n"
        "except quivermq.ConnectionFailed: pass\n"
        "assert 'pyarrow' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
