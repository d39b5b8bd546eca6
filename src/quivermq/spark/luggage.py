"""Formats that bring their package along: for clusters whose Python has no quivermq.

Spark pickles a format's class by its name, which works where the name can be imported. A carried
format is a class without a name that can be: it travels as code, with our modules in its luggage,
unpacks them wherever it arrives, and hands every question to the real format. The readers and
writers that it returns travel on to the executors in the same way.

So executors run what the driver runs, whatever is installed there. They need what our client
needs: pyarrow, which Spark wants anyway, crc32c and protobuf.
"""

import io
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from pyspark.sql.datasource import DataSource

import quivermq

_STAYS: Final = frozenset(
    "cli cluster log node pipelines portal queue raft replica settings testing transports".split()
)
"""What brokers and commands are made of: nothing in Spark asks for it."""
_LONG_AGO: Final = (1980, 1, 1, 0, 0, 0)


@cache
def pack() -> bytes:
    """Our modules, compressed: the same bytes for the same modules."""
    root = Path(quivermq.__file__).parent
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*.py")):
            place = path.relative_to(root)
            if place.parts[0].removesuffix(".py") not in _STAYS:
                entry = zipfile.ZipInfo(f"quivermq/{place.as_posix()}", _LONG_AGO)
                archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def carried(
    real: type[DataSource], defaults: Mapping[str, str], packed: bytes | None
) -> type[DataSource]:
    """The format `real` with default options, and with our modules if the other side lacks them.

    All that travels is inside this function: whatever is outside would be looked for by its name.
    """
    module, qualname, format_name = real.__module__, real.__qualname__, real.name()
    defaults = dict(defaults)

    def unpack() -> None:
        import hashlib  # noqa: PLC0415
        import importlib  # noqa: PLC0415
        import io  # noqa: PLC0415
        import os  # noqa: PLC0415
        import sys  # noqa: PLC0415
        import tempfile  # noqa: PLC0415
        import zipfile  # noqa: PLC0415

        if packed is None or "quivermq" in sys.modules:
            return
        # Readable to this user only, or others could put their code into our processes.
        digest = hashlib.sha256(packed).hexdigest()[:24]
        place = os.path.join(tempfile.gettempdir(), f"quivermq-{os.getuid()}-{digest}")  # noqa: PTH118
        if not os.path.isdir(place):  # noqa: PTH112
            making = tempfile.mkdtemp(prefix="quivermq-")
            zipfile.ZipFile(io.BytesIO(packed)).extractall(making)
            try:
                os.rename(making, place)  # noqa: PTH104
            except OSError:
                place = place if os.path.isdir(place) else making  # noqa: PTH112
        status = os.lstat(place)
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise PermissionError(f"{place} is not this user's alone: remove it")
        sys.path.insert(0, place)
        importlib.invalidate_caches()

    def real_format(options: Any) -> DataSource:
        import importlib  # noqa: PLC0415
        import sys  # noqa: PLC0415

        unpack()
        try:
            found = getattr(importlib.import_module(module), qualname)
            importlib.import_module("quivermq.client")
        except ImportError as error:
            raise ImportError(
                f"{sys.executable} on Spark's side lacks what quivermq needs ({error}): "
                f"pip install pyarrow crc32c protobuf there"
            ) from error
        made: DataSource = found(options)
        return made

    def arrive(pickled: bytes) -> Any:
        import pickle  # noqa: PLC0415

        unpack()
        kind, state = pickle.loads(pickled)  # noqa: S301
        thing = carrying(kind.__new__(kind))
        thing.__dict__.update(state)
        return thing

    def carrying(thing: Any) -> Any:
        """`thing`, of a class that differs in one matter: how it is pickled."""
        if packed is None:
            return thing
        kind = type(thing)

        def __reduce_ex__(self: Any, protocol: int) -> Any:  # noqa: N807
            from pyspark import cloudpickle  # noqa: PLC0415

            return arrive, (cloudpickle.dumps((kind, self.__dict__), protocol),)

        thing.__class__ = type(kind.__name__, (kind,), {"__reduce_ex__": __reduce_ex__})
        return thing

    class Carried(DataSource):
        def __init__(self, options: Any) -> None:
            for key, value in defaults.items():
                if not options.get(key):
                    options[key] = value
            super().__init__(options)

        @classmethod
        def name(cls) -> str:
            return format_name

        def schema(self) -> Any:
            return real_format(self.options).schema()

        def reader(self, schema: Any) -> Any:
            return carrying(real_format(self.options).reader(schema))

        def streamReader(self, schema: Any) -> Any:
            return carrying(real_format(self.options).streamReader(schema))

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return carrying(real_format(self.options).writer(schema, overwrite))

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return carrying(real_format(self.options).streamWriter(schema, overwrite))

    return Carried
