"""One thread: the networks of the tests are small, and threads that wait for each other cost more than they give."""

import torch

torch.set_num_threads(1)
