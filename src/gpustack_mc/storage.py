"""Files are written whole or not at all: to a temporary name in the same folder, then renamed."""

import contextlib
import os
import re
import tempfile
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpustack_mc.errors import GpustackError, Place


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
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        # mkstemp makes private files; a result is as readable as the user's other files.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise GpustackError(
            "cannot-write",
            f"cannot write: {reason}.",
            "Nothing was changed; choose another folder with --out.",
            Place(str(path)),
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing_all(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Yield temporary paths that take the places of all `paths` once every one of them is written, or of none."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(replacing(path)) for path in paths]


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
