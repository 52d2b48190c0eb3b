"""How Sphinx builds the documentation; `make docs` runs it."""

import os
import shutil
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any, NoReturn

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

project = "pyro_fnbg"
author = "pyro_fnbg developers"
project_copyright = author
version = release = installed_version("pyro-fnbg")

# Sphinx takes pages from this folder only
HERE = Path(__file__).resolve().parent
shutil.copytree(HERE.parent / "examples" / "notebooks", HERE / "notebooks", dirs_exist_ok=True)

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
# Some docstrings mark code by single backticks
default_role = "code"

myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 3

# Notebooks are kept without outputs. They run once, and again when their code has changed, but not
# when the package has: make clean removes what is kept (docs/_build/.jupyter_cache)
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / ".jupyter_cache")
nb_execution_timeout = 900
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
# Bars would be widgets, which a page shows by scripts from elsewhere only. Kernels that are told of
# another backend, as by the Makefile, leave out the pictures
os.environ["TQDM_DISABLE"] = "1"
os.environ.pop("MPLBACKEND", None)

# A link to a name, a page or a place in it that does not exist is a warning, and so an error. Types
# in signatures are no links where they are of other packages, or not in the reference
nitpicky = True
nitpick_ignore_regex = [("py:(class|exc|data|obj)", r"(?!pyro_fnbg\.(plots\.|testing\.)?\w+$).*")]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

# In the entry of the class, as a list; entries of their own would take three lines each
napoleon_use_ivar = True

html_theme = "furo"
# Lines of 100 characters, as in the docstrings, fit
html_theme_options = {
    "light_css_variables": {"code-font-size": "75%"},
    "dark_css_variables": {"code-font-size": "75%"},
}
html_title = f"{project} {release}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["pages.css"]

# Browsers show MathML by themselves; the scripts that Sphinx would load need a network
html_math_renderer = "mathml"


def setup(app: Sphinx) -> None:
    """Let equations be written as MathML, by docutils."""
    app.add_html_math_renderer("mathml", (write_inline_math, None), (write_math_block, None))


def write_inline_math(writer: Any, node: nodes.math) -> NoReturn:
    """Write an equation in a line of text."""
    writer.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def write_math_block(writer: Any, node: nodes.math_block) -> NoReturn:
    """Write an equation on a line of its own."""
    equation = tex2mathml(node.astext(), as_block=True)
    writer.body.append(f'<div class="equation">{equation}</div>')
    raise nodes.SkipNode
