"""Ctrl-C, also while libraries are being imported.

An exception in the middle of an import of a library written in C may abort the process, and leaves the interpreter in a
state in which it ends with another code than 130. An interruption is therefore held back until the import is done.
"""

import os
import signal
import sys
import threading
from types import FrameType

EXIT_CODE = 130
MESSAGE = "interrupted; nothing was written"
_AGAIN_AFTER = 0.05


def install() -> None:
    """Hold interruptions back during imports, unless the program handles them in its own way."""
    main_thread = threading.current_thread() is threading.main_thread()
    if main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            again = threading.Timer(_AGAIN_AFTER, os.kill, (os.getpid(), signal.SIGINT))
            again.daemon = True
            again.start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def exit_interrupted() -> None:
    """End the program as an interrupted one."""
    sys.stderr.write(f"\n{MESSAGE}\n")
    sys.exit(EXIT_CODE)
