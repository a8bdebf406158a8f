"""The documentation site: `make docs` builds it, with warnings as errors."""

import unfit

project = "unfit"
release = unfit.__version__
html_title = "unfit"
html_theme = "furo"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_scaled_image_link = False  # pages link their pictures themselves
smartquotes = False  # `--` is a flag, not a dash
html_static_path = ["style"]
html_css_files = ["site.css"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["reproduction/cache"]
myst_enable_extensions = ["deflist", "html_image"]
myst_heading_anchors = 3  # [text](page.md#heading), as where these files are read without a site

default_role = "code"  # docstrings write `name`, as Markdown does
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
nitpicky = True  # a reference that leads nowhere is an error, …
nitpick_ignore_regex = [("py:.*", ".*")]  # … but for types in signatures: many are of other packages
