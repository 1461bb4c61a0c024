"""Where repositories come from: git, an sdist of the Python package index, or a folder."""
