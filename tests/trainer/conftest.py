"""One thread: the ranks of a test share the cores, and threads that wait for each other spin."""

import torch

torch.set_num_threads(1)
