"""Without a GPU, Triton kernels run through Triton's interpreter, which has to be chosen before triton is imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# tests/gpu needs a real device; everything that can be tested without one is tested without one.
collect_ignore = [] if torch.cuda.is_available() else ["gpu"]
