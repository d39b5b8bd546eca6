"""Scripts and other things that sessions make once and keep: in $XDG_CACHE_HOME/quivermq.

Several processes may make the same thing at once: whatever is there is whole.
"""

import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path


def cache_script(
    kind: str,
    place: str,
    text: str,
    beside: Mapping[str, Path] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Path:
    """A command with this text, at `place` in a folder of its own; `beside` become links there."""
    # A name that changes with what is in it: nobody ever rewrites a folder that another uses.
    folder = cache_folder(environ) / f"{kind}-{sha256(text.encode()).hexdigest()[:16]}"
    command = folder / place
    if not command.exists():
        making = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=folder.parent))
        for name, target in (beside or {}).items():
            (making / name).symlink_to(target)
        (making / place).parent.mkdir(parents=True, exist_ok=True)
        (making / place).write_text(text)
        (making / place).chmod(0o755)
        making.chmod(0o755)
        try:
            making.rename(folder)
        except OSError:
            # Another process was quicker; the same name says that it made the same.
            shutil.rmtree(making)
    return command


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Where things are kept that can be made again: $XDG_CACHE_HOME/quivermq, made if need be.

    Where that cannot be written, as for users without a home, a temporary folder of the user's own.
    """
    environ = os.environ if environ is None else environ
    chosen = environ.get("XDG_CACHE_HOME", "")
    try:
        caches = Path(chosen) if chosen.startswith("/") else Path.home() / ".cache"
        folder = caches / "quivermq"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return _temporary_folder()
    return folder if os.access(folder, os.W_OK) else _temporary_folder()


def _temporary_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"quivermq-cache-{os.getuid()}"
    with suppress(FileExistsError):  # of what is no folder: see below
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    # What lies there is run: nobody else may put anything into it.
    if is_ours and not status.st_mode & 0o077:
        return folder
    return Path(tempfile.mkdtemp(prefix="quivermq-"))
