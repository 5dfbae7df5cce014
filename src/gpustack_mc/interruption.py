"""Ctrl-C ends the program at once, whatever library is running, and leaves no unfinished file.

Python's own way, an exception wherever the main thread happens to be, is lost when that is a callback of a library (JAX
has one in every garbage collection), and prints tracebacks when it hits an import or a thread. All files change places
in one go at the end, so that nothing but temporary files has to be cleared away.
"""

import contextlib
import os
import signal
import sys

EXIT_INTERRUPTED = 130
WORDS = "interrupted; nothing was written"
_words = WORDS


def arm() -> None:
    """Take over Ctrl-C, unless whoever started the program has it ignored."""
    # A thread that is not the main one may not, and does not get the signal either.
    with contextlib.suppress(ValueError):
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _stop)


def say(words: str = WORDS) -> None:
    """Set what is said when the program is interrupted from now on."""
    global _words
    _words = words


def _stop(number: int, frame: object) -> None:
    # Imported by nobody yet means that nothing can have been written; importing it here could wait for itself.
    abandon = getattr(sys.modules.get("gpustack_mc.storage"), "abandon", None)
    if abandon is not None and not abandon():
        return  # files are changing places: in a moment all is written
    erase = "\r\x1b[K" if os.isatty(2) else ""
    with contextlib.suppress(OSError):
        os.write(2, f"{erase}{_words}\n".encode())
    os._exit(EXIT_INTERRUPTED)
