"""Ships our package with a format, to clusters whose Python has no quivermq.

Spark pickles a format's class by its name, which works where the name can be imported. A shipped
format is a class without an importable name: it is pickled as code, together with a zip of our
modules. On the other side it unpacks them and forwards every call to the real format. The readers
and writers that it returns are shipped to the executors in the same way.

So executors run the driver's release of our code. They need the dependencies of our client:
pyarrow, which Spark needs anyway, crc32c and protobuf.

All shipped code is a function or a class inside a function, and imports what it needs itself:
anything else would be pickled by its name.
"""

import io
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from pyspark.sql.datasource import DataSource

import quivermq

_NOT_SHIPPED: Final = {
    "backup", "cli", "cluster", "cluster_findings", "cluster_samples", "integrations", "log",
    "node", "pipelines", "portal", "queue", "raft", "replica", "testing", "transports",
}  # fmt: skip
"""Code of brokers, commands and other frameworks, which Spark never imports."""
_ZIP_TIME: Final = (1980, 1, 1, 0, 0, 0)


@cache
def pack_modules() -> bytes:
    """Our modules as a zip: the same bytes for the same modules."""
    root = Path(quivermq.__file__).parent
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*.py")):
            place = path.relative_to(root)
            if place.parts[0].removesuffix(".py") not in _NOT_SHIPPED:
                entry = zipfile.ZipInfo(f"quivermq/{place.as_posix()}", _ZIP_TIME)
                archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def make_shipped_format(
    real: type[DataSource], defaults: Mapping[str, str], packed: bytes | None
) -> type[DataSource]:
    """The format `real` with default options, and with our modules if `packed` is given."""
    format_name, defaults = real.name(), dict(defaults)
    unpack = _make_unpack(packed)
    ask = _make_ask(real.__module__, real.__qualname__, unpack)
    ship = _make_ship(unpack) if packed else _make_passthrough()

    class ShippedFormat(DataSource):
        def __init__(self, options: Any) -> None:
            for key, value in defaults.items():
                if not options.get(key):
                    options[key] = value
            super().__init__(options)

        @classmethod
        def name(cls) -> str:
            return format_name

        def schema(self) -> Any:
            return ask(self.options).schema()

        def reader(self, schema: Any) -> Any:
            return ship(ask(self.options).reader(schema))

        def streamReader(self, schema: Any) -> Any:
            return ship(ask(self.options).streamReader(schema))

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return ship(ask(self.options).writer(schema, overwrite))

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return ship(ask(self.options).streamWriter(schema, overwrite))

    return ShippedFormat


def _make_unpack(packed: bytes | None) -> Callable[[], None]:
    def unpack() -> None:
        import hashlib  # noqa: PLC0415
        import io  # noqa: PLC0415
        import os  # noqa: PLC0415
        import shutil  # noqa: PLC0415
        import sys  # noqa: PLC0415
        import tempfile  # noqa: PLC0415
        import zipfile  # noqa: PLC0415
        from contextlib import suppress  # noqa: PLC0415
        from pathlib import Path  # noqa: PLC0415

        if packed is None or "quivermq" in sys.modules:
            return
        digest = hashlib.sha256(packed).hexdigest()[:24]
        place = Path(tempfile.gettempdir()) / f"quivermq-{os.getuid()}-{digest}"
        archive = zipfile.ZipFile(io.BytesIO(packed))

        def is_whole() -> bool:
            # The system may have removed old temporary files, one by one.
            return all((place / name).exists() for name in archive.namelist())

        if not is_whole():
            making = Path(tempfile.mkdtemp(prefix="quivermq-"))
            archive.extractall(making)
            # A process with the incomplete folder on its path finds the whole one a moment later.
            remains = Path(f"{making}.remains")
            with suppress(OSError):
                if not is_whole():
                    place.rename(remains)
            try:
                making.rename(place)
            except OSError:
                # If another process was faster, use its folder; else use this one.
                if is_whole():
                    shutil.rmtree(making, ignore_errors=True)
                else:
                    place = making
            shutil.rmtree(remains, ignore_errors=True)
        status = place.lstat()
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            # Another user who can write there could run code in our processes.
            raise PermissionError(f"{place} is not this user's alone: remove it")
        sys.path.insert(0, str(place))

    return unpack


def _make_ask(
    module: str, qualname: str, unpack: Callable[[], None]
) -> Callable[[Mapping[str, str]], DataSource]:
    def ask(options: Mapping[str, str]) -> DataSource:
        import importlib  # noqa: PLC0415
        import sys  # noqa: PLC0415

        unpack()
        try:
            importlib.import_module("quivermq.client")
            real = getattr(importlib.import_module(module), qualname)
        except ImportError as error:
            raise ImportError(
                f"{sys.executable} on Spark's side lacks what quivermq needs ({error}): "
                f"pip install pyarrow crc32c protobuf there"
            ) from error
        made: DataSource = real(options)
        return made

    return ask


def _make_ship(unpack: Callable[[], None]) -> Callable[[Any], Any]:
    """Returns a function that makes a reader or writer unpack our modules when it is unpickled."""

    def arrive(pickled: bytes) -> Any:
        import pickle  # noqa: PLC0415

        unpack()
        kind, state = pickle.loads(pickled)  # noqa: S301
        thing = kind.__new__(kind)
        thing.__dict__.update(state)
        return ship(thing)

    def ship(thing: Any) -> Any:
        kind = type(thing)

        def reduce(self: Any, _protocol: int) -> Any:
            from pyspark.serializers import CloudPickleSerializer  # noqa: PLC0415

            return arrive, (CloudPickleSerializer().dumps((kind, self.__dict__)),)

        thing.__class__ = type(kind.__name__, (kind,), {"__reduce_ex__": reduce})
        return thing

    return ship


def _make_passthrough() -> Callable[[Any], Any]:
    def ship(thing: Any) -> Any:
        return thing

    return ship
