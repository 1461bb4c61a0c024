"""Turn real repositories into reinforcement-learning tasks for coding agents."""

__version__ = "0.1.0"
