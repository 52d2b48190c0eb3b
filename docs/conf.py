"""How Sphinx builds the documentation; `make docs` runs it."""

from importlib.metadata import version as installed_version

project = "pyro_fnbg"
author = "pyro_fnbg developers"
project_copyright = author
version = release = installed_version("pyro-fnbg")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
# Some docstrings mark code by single backticks
default_role = "code"

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

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
