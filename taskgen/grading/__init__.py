"""Grading: a patch in, a verdict out."""
