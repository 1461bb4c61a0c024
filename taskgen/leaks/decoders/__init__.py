"""Decoders: one format a module, chosen by content. The table is in ``leaks.decoding``."""
