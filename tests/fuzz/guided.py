"""Fuzzes one target guided by coverage, with libFuzzer: `python -m tests.fuzz.guided frame 60`.

`python -m tests.fuzz --guided` starts it, in a process of its own for each target: libFuzzer ends
the process that it runs in. Needs atheris (`pip install --group fuzz`), which has no wheels for
every platform.
"""

import logging
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

try:
    import atheris
except ImportError:
    atheris = None

MISSING = (
    "atheris is not installed: `pip install --group fuzz` installs it where it has wheels "
    "(Linux and macOS, CPython). Without --guided nothing is needed."
)
_SEALED_SHARE = 0.7
_OWN_CHANGES_SHARE = 0.4
_NOISY = {"http": ["quivermq.transports.http", "quivermq.wire", "h11"]}
"""Targets with a broker that works meanwhile: only these modules tell inputs from each other."""


@dataclass(frozen=True)
class Outcome:
    """What came of a guided run."""

    inputs: int
    edges: int
    corpus: list[bytes]
    """The inputs that reached something first."""
    bug: bytes | None
    log: str


def run_guided(name: str, seconds: int, seed: int) -> Outcome:
    """Fuzz a target in another process, until a bug is found or the time is over."""
    with tempfile.TemporaryDirectory() as folder:
        corpus, artifacts = Path(folder) / "corpus", Path(folder) / "artifacts"
        corpus.mkdir()
        artifacts.mkdir()
        where = [str(corpus), f"-artifact_prefix={artifacts}/", f"-seed={seed}"]
        command = [sys.executable, "-m", "tests.fuzz.guided", name, str(seconds), *where]
        run = subprocess.run(command, capture_output=True, check=False)
        log = run.stderr.decode(errors="replace") + run.stdout.decode(errors="replace")
        bugs = sorted(artifacts.iterdir())
        if run.returncode and not bugs:
            raise RuntimeError(f"the guided run of {name} failed:\n{log[-5_000:]}")
        return Outcome(
            inputs=max(map(int, re.findall(r"^#(\d+)", log, re.MULTILINE)), default=0),
            edges=max(map(int, re.findall(r" cov: (\d+)", log)), default=0),
            corpus=[path.read_bytes() for path in corpus.iterdir()],
            bug=bugs[0].read_bytes() if bugs else None,
            log=log,
        )


def _fuzz(name: str, seconds: int, corpus: Path, options: list[str]) -> None:
    include = _NOISY.get(name, ["quivermq"])
    with atheris.instrument_imports(include=include, exclude=["quivermq.testing"]):
        from tests.fuzz import corpus as kept  # noqa: PLC0415
        from tests.fuzz.mutation import mutated  # noqa: PLC0415
        from tests.fuzz.target import INPUT_BYTES_MAX, trouble  # noqa: PLC0415
        from tests.fuzz.targets import TARGETS  # noqa: PLC0415
    logging.getLogger("quivermq").addHandler(logging.NullHandler())
    target = TARGETS[name]
    for sample in target.samples():
        target.read(sample)
    samples = target.samples() + kept.load(name)
    for number, sample in enumerate(samples):
        (corpus / f"sample-{number:04d}").write_bytes(sample)

    def one_input(data: bytes) -> None:
        if found := trouble(target, data):
            raise RuntimeError(found)

    def change(data: bytes, size_max: int, seed: int) -> Any:
        """libFuzzer's own changes, or ours; then the checksums are made right, mostly."""
        dice = Random(seed)
        if dice.random() < _OWN_CHANGES_SHARE:
            changed = mutated(bytes(data), samples, dice)
        else:
            changed = bytes(atheris.Mutate(data, size_max))
        if dice.random() < _SEALED_SHARE:
            changed = target.seal(changed)
        return changed[:size_max]

    # Its limit is by the clock, and cannot be switched off; ours is by the processor.
    limits = [f"-max_total_time={seconds}", f"-max_len={INPUT_BYTES_MAX}", "-timeout=100000"]
    arguments = [sys.argv[0], *limits, "-rss_limit_mb=4096", *options, str(corpus)]
    atheris.Setup(arguments, one_input, custom_mutator=change)
    atheris.Fuzz()


if __name__ == "__main__":
    if atheris is None:
        sys.exit(MISSING)
    _fuzz(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
