"""How Sphinx builds the documentation; `make docs` runs it."""

import shutil
from importlib.metadata import version as installed_version
from pathlib import Path

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

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

# Notebooks are kept without outputs. They run once, and again when they or the package have changed
# (docs/_build/.jupyter_cache, which make clean removes)
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / ".jupyter_cache")
nb_execution_timeout = 900
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True

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
