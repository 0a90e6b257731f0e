"""Without a GPU the kernels run in Triton's interpreter; that is decided before triton is first imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
