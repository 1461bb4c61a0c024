"""Policies: what answers prompts. Each is one class that satisfies ``policy.Policy``."""
