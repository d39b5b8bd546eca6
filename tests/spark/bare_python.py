"""A Python that has what executors need, and no quivermq: as on a cluster that others run."""

import sys
import sysconfig
from pathlib import Path


def make(folder: Path) -> Path:
    """A command that behaves like this Python, but for our package and what .pth files add."""
    links = folder / "site-packages"
    links.mkdir(parents=True)
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        is_ours = entry.name.startswith(("quivermq", "pyspark_quiver", "pyspark"))
        if not is_ours and entry.suffix != ".pth":
            (links / entry.name).symlink_to(entry)
    # What formats unpack goes with this folder.
    temporary = folder / "tmp"
    temporary.mkdir()
    command = folder / "python3"
    command.write_text(
        "#!/bin/sh\n"
        f'export TMPDIR="{temporary}" PYTHONPATH="{links}:$PYTHONPATH"\n'
        f'exec "{sys.executable}" -S "$@"\n'
    )
    command.chmod(0o755)
    return command
