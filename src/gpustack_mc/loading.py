"""Modules that are imported while something else computes."""

import importlib
import threading


def load_meanwhile(*modules: str) -> None:
    """Import in the background what is needed after the sampling, which leaves the interpreter idle for seconds.

    A failure is left to the import that needs the module.
    """

    def load() -> None:
        for name in modules:
            try:
                importlib.import_module(name)
            except ImportError:
                return

    threading.Thread(target=load, daemon=True).start()
