"""Keeps scripts and other files that sessions make once, in $XDG_CACHE_HOME/quivermq.

Several processes may make the same file at once: a file that exists is complete.
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
    """Make a command with this text, at `place` in its own folder; `beside` become links there."""
    # The name is a hash of the text: a folder that another process uses is never rewritten.
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
            # Another process was faster; the same name means the same content.
            shutil.rmtree(making)
    return command


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """The cache, $XDG_CACHE_HOME/quivermq, created if it is missing.

    If it cannot be written, as for users without a home, a temporary folder of the user's own.
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
    with suppress(FileExistsError):  # if it is no folder: see below
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    # Its scripts are run: no other user may write to it.
    if is_ours and not status.st_mode & 0o077:
        return folder
    return Path(tempfile.mkdtemp(prefix="quivermq-"))
