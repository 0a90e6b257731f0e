"""Without a GPU the kernels run in Triton's interpreter; that is decided before triton is first imported."""

import os
import sys
from pathlib import Path

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):  # they share the cores; threads that wait spin
    torch.set_num_threads(min(torch.get_num_threads(), max((os.cpu_count() or 1) // workers, 1)))
    os.environ["OMP_NUM_THREADS"] = str(torch.get_num_threads())

sys.path.append(str(Path(__file__).parent))  # for modules that tests share
