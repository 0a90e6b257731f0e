"""Without a GPU the kernels run in Triton's interpreter; that is decided before triton is first imported."""

import os
import sys
from pathlib import Path

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

sys.path.append(str(Path(__file__).parent))  # for modules that tests share
