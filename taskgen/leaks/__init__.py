"""Leaks: what would let somebody take the deleted code instead of writing it."""
