"""Deletion operators, one a module; ``table`` lists them."""
