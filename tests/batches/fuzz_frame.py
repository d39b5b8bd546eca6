"""Coverage-guided fuzzing of frames: `python -m tests.batches.fuzz_frame --seconds 60`.

Needs atheris (`pip install --group fuzz`), which has no wheels for every platform. Inputs that
break the rule stay in `--artifacts`; run one again by naming its file.
"""

import argparse
import sys
import tempfile
from pathlib import Path

try:
    import atheris
except ImportError:
    atheris = None

MISSING = (
    "atheris is not installed: `pip install --group fuzz` installs it where it has wheels "
    "(Linux and macOS, CPython). The hypothesis tests in tests/batches/test_fuzz.py need nothing."
)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=int, default=60)
    arguments.add_argument("--artifacts", type=Path, default=Path("fuzz-artifacts"))
    arguments.add_argument("inputs", nargs="*", help="files that an earlier run left behind")
    options = arguments.parse_args()
    if atheris is None:
        sys.exit(MISSING)
    with tempfile.TemporaryDirectory() as corpus:
        fuzz(options.seconds, options.artifacts, options.inputs, Path(corpus))


def fuzz(seconds: int, artifacts: Path, inputs: list[str], corpus: Path) -> None:
    with atheris.instrument_imports(include=["quivermq"]):
        from quivermq.batches import FrameKind, Header  # noqa: PLC0415
        from tests.batches.lies import outcome  # noqa: PLC0415
        from tests.batches.samples import (  # noqa: PLC0415
            COLUMN_SETS,
            COMPRESSIONS,
            frame_of,
            with_body,
        )

    def one_input(data: bytes) -> None:
        """Two bytes of flags and count, then a body: the checksums are made right here."""
        outcome(data)
        if len(data) < 2:
            return
        header = Header(FrameKind.DATA, flags=data[0] % 32, count=data[1], decoded_bytes=1 << 20)
        outcome(with_body(header, data[2:]))

    for flags in COLUMN_SETS:
        for compression in COMPRESSIONS:
            for rows in (1, 5, 20):
                frame = frame_of(flags, compression, rows)
                seed = bytes([frame.header.flags, rows]) + bytes(frame.body)
                (corpus / f"{frame.header.flags}-{rows}").write_bytes(seed)
                (corpus / f"whole-{frame.header.flags}-{rows}").write_bytes(bytes(frame))
    artifacts.mkdir(exist_ok=True)
    limits = [f"-max_total_time={seconds}", "-max_len=4096", "-rss_limit_mb=1024", "-timeout=5"]
    where = inputs or [str(corpus)]
    atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={artifacts}/", *where], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
