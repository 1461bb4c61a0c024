"""The trainer: reinforcement learning on taskgen's tasks, with Muon sharded over ranks.

Started as a process of its own (``python -m trainer``, ``torchrun -m trainer``); the optimizer's three modules
(``newton_schulz``, ``reshard``, ``muon``) import torch alone and can be lifted into another trainer.
"""
