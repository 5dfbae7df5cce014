"""Files are written whole or not at all: to a temporary name in the same folder, then renamed."""

import contextlib
import errno
import json
import os
import re
import tempfile
import time
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpustack_mc.errors import GpustackError, Place

_OURS = ".gpustack-mc-"
_JOURNAL = ".gpustack-mc.journal"
# Seconds after which a temporary file belongs to nobody: writing takes a few.
_LEFT_BEHIND = 3600
_folders: set[Path] = set()
_made: list[Path] = []
_changing = False


def slug(name: str) -> str:
    """Return a folder name for a scenario: ASCII letters, digits and dashes, never a path."""
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", ascii_name.lower()).strip("-")[:80] or "scenario"


def stem(source: str | Path, name: str) -> str:
    """Return what to call the results of a scenario: its file without the suffix, or its name when it has no file.

    The names of shipped scenarios have dots: ``llama-3.1-405b`` ends in no suffix.
    """
    path = Path(source)
    return name if str(source) == "-" else path.stem if path.suffix in (".yaml", ".yml", ".json") else path.name


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that takes the place of `path` when the block ends well, and vanishes when it does not.

    Raises
    ------
    GpustackError
        The folder cannot be made or written; what was there before is untouched.
    """
    with replacing_all([path]) as (temporary,):
        yield temporary


@contextlib.contextmanager
def replacing_all(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Yield temporary paths that take the places of all `paths` of one folder once every one is written, or of none.

    A process that is killed while the files change places leaves a journal behind, from which `recover` brings the
    change to its end, so that the folder never keeps some files of one run and some of another.

    Raises
    ------
    GpustackError
        The folder cannot be made or written; what was there before is untouched.
    """
    temporary: list[Path] = []
    at = paths[0]
    try:
        for at in paths:
            temporary.append(_temporary(at))
        yield temporary
        for place, at in zip(temporary, paths, strict=True):
            _settle(place, at)
        with _alone(paths[0].parent):
            recover(paths[0].parent)
            _swap(temporary, paths)
    except OSError as error:
        reason = error.strerror or str(error)
        raise GpustackError(
            "cannot-write",
            f"cannot write: {reason}.",
            "Nothing was changed; choose another folder with --out.",
            Place(str(at)),
        ) from error
    finally:
        for place in temporary:
            place.unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    _made.extend(folder for folder in (path.parent, *path.parent.parents) if not folder.exists())
    path.parent.mkdir(parents=True, exist_ok=True)
    _folders.add(path.parent)
    prefix = f"{_OURS}{path.stem[:80]}-{os.getpid()}-"
    handle, name = tempfile.mkstemp(prefix=prefix, suffix=path.suffix, dir=path.parent)
    os.close(handle)
    return Path(name)


def abandon() -> bool:
    """Clear away what is not finished, for a program that is to end now; False while files change places."""
    if _changing:
        return False
    # By name: a file that was made a moment ago may not be known otherwise yet.
    for folder in _folders:
        for left in folder.glob(f"{_OURS}*-{os.getpid()}-*"):
            with contextlib.suppress(OSError):
                left.unlink()
    for folder in _made:
        with contextlib.suppress(OSError):
            folder.rmdir()
    return True


def _settle(place: Path, path: Path) -> None:
    """Make a written file ready to take its place: on the disk, and as readable as the user's other files."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    umask = os.umask(0)
    os.umask(umask)
    place.chmod(0o666 & ~umask)
    _flush(place)


def _flush(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def _swap(temporary: Sequence[Path], paths: Sequence[Path]) -> None:
    global _changing
    _changing = True
    try:
        _change(temporary, paths)
    finally:
        _changing = False


def _change(temporary: Sequence[Path], paths: Sequence[Path]) -> None:
    journal = paths[0].with_name(_JOURNAL)
    if len(paths) > 1:
        draft = _temporary(journal)
        try:
            draft.write_text(json.dumps([[a.name, b.name] for a, b in zip(temporary, paths, strict=True)]))
            _flush(draft)
            os.replace(draft, journal)
        finally:
            draft.unlink(missing_ok=True)
    for place, path in zip(temporary, paths, strict=True):
        os.replace(place, path)
    journal.unlink(missing_ok=True)


def recover(folder: Path) -> None:
    """Bring to its end what a killed process began in a folder, and clear away what one left there an hour ago.

    Raises
    ------
    OSError
        The folder cannot be written.
    """
    journal = folder / _JOURNAL
    if journal.is_file():
        for place, path in _entries(journal):
            if (folder / place).is_file():
                os.replace(folder / place, folder / path)
        journal.unlink(missing_ok=True)
    for left in folder.glob(f"{_OURS}*"):
        with contextlib.suppress(FileNotFoundError):
            if left.is_file() and time.time() - left.stat().st_mtime > _LEFT_BEHIND:
                left.unlink()


def recover_if_needed(folder: Path) -> None:
    """Bring a change of files to its end before one of them is read, where a journal says that one was cut off."""
    if (folder / _JOURNAL).is_file():
        with contextlib.suppress(OSError), _alone(folder):
            recover(folder)


def _entries(journal: Path) -> Iterator[tuple[str, str]]:
    """Yield the pairs of names in a journal; one that is not ours moves nothing."""
    try:
        pairs = json.loads(journal.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return
    for pair in pairs if isinstance(pairs, list) else ():
        if isinstance(pair, list) and len(pair) == 2 and all(isinstance(name, str) for name in pair):
            if all(map(_is_plain, pair)) and pair[0].startswith(_OURS) and not (journal.parent / pair[1]).is_dir():
                yield pair[0], pair[1]


def _is_plain(name: str) -> bool:
    """Whether a text names a file of a folder itself, as far as any file system has such a file."""
    fits = name.isprintable() and len(name.encode()) <= 255
    return fits and name not in ("", ".", "..") and Path(name).name == name


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from changing files of the folder; the system lets go of the lock with the process."""
    try:
        import fcntl
    except ImportError:  # Windows: renames are still whole, file by file
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        # Some network file systems have no locks.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def require_folder(folder: Path) -> None:
    """Make a folder and make sure that it can be written, before any work is done for it.

    Raises
    ------
    GpustackError
        It cannot.
    """
    try:
        with replacing(folder / ".probe") as temporary:
            temporary.write_text("", encoding="utf-8")
    except GpustackError as error:
        raise GpustackError(error.code, error.message, error.fix, Place(str(folder))) from error
    (folder / ".probe").unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
