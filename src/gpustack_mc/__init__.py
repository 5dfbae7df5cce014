"""Credible intervals and sensitivity for the time, energy, CO2 and cost of training an AI model.

>>> import gpustack_mc as mc
>>> tree = mc.simulate("llama-3-70b", samples=1024)
>>> mc.summary(tree)["cost_owned_usd"].attrs["units"]
'USD'
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpustack_mc.api import compare, load_scenario, open_result, sensitivity, simulate, summary, table

__version__ = "0.1.0"
__all__ = ["compare", "load_scenario", "open_result", "sensitivity", "simulate", "summary", "table"]

# To a type checker this function would say that every name exists, a misspelt one too.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Load the functions of `gpustack_mc.api` when one is first asked for: JAX takes a second to import."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from gpustack_mc import api

        globals().update({each: getattr(api, each) for each in __all__})
        return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
