"""Training runs, as far as they need no torch: what a run records, and how it is shown."""
