"""Sphinx settings; the reference and the gallery are generated before each build, and the notebook is run."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from gpustack_mc import __version__

project = "gpustack-mc"
author = "The gpustack-mc developers"
release = version = __version__
extensions = ["myst_nb"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
# Notebooks are stored without outputs and run at each build, in a folder of their own; one that fails breaks the build.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_execution_timeout = 300
html_theme = "furo"
html_title = "gpustack-mc"
html_static_path = ["_static"]
html_css_files = ["pictures.css"]
# Pages that are no part of the site's own layout; they are generated too, and Sphinx wants to see the folder.
html_extra_path = ["generated/extra"]
(Path(__file__).parent / html_extra_path[0]).mkdir(parents=True, exist_ok=True)
# Equations are MathML, as in the report: a page asks no server for anything.
exclude_patterns = ["_build", "images"]
nitpicky = True


def setup(app: object) -> None:
    """Write the generated pages."""
    import generate

    app.connect("builder-inited", lambda app: generate.main())
