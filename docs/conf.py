"""Sphinx's settings of the site; `make docs` builds it into build/site.

The pages are plain Markdown, also read where the repository is shown: index.md, api.md and
changes.md alone use what only Sphinx understands.
"""

from __future__ import annotations

import hvd_sparse

project = "hvd_sparse"
release = hvd_sparse.__version__
html_title = f"hvd_sparse {release}"
html_show_copyright = False
html_theme = "furo"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
highlight_language = "none"  # of blocks that name none: output and diagrams
myst_heading_anchors = 3

# ---- The reference -------------------------------------------------------------------------------

default_role = "code"  # `name` in docstrings
add_module_names = False
python_use_unqualified_type_names = True
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
napoleon_use_ivar = True
napoleon_custom_sections = [("Reference", "References")]
# Of other projects, whose pages a build without a network cannot ask for; all else that a signature
# names must be in the reference.
nitpick_ignore_regex = [
    (r"py:.*", r"(torch|tensorflow|tf|horovod|collections|contextlib|pathlib|typing|os)\..*"),
    (r"py:class", r"hvd_sparse\.planning\.records\.S"),  # a type variable
]
