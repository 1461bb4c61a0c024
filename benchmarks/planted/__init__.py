"""Trees with known leaks, made by running real tools on real projects: what the audit's recall is measured on."""
