"""The GPU lane's process: what cuBLAS reads once is set before an import starts CUDA."""

import os

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
