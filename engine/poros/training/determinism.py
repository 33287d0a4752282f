"""Seeds, flags and random states: what a repeatable run rests on."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from poros.errors import PorosConfigError, PorosResumeError

CUBLAS_WORKSPACE = ":4096:8"

_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
_NUM_PYTHON_WORDS = 625
_NUM_NUMPY_WORDS = 624


def prepare_cuda() -> None:
    """Set what cuBLAS reads once, when CUDA starts; call it before anything asks about a GPU."""
    if not torch.cuda.is_initialized():
        os.environ[_VARIABLE] = CUBLAS_WORKSPACE


def enforce_determinism(
    device: torch.device | str = "cuda", *, num_threads: int | None = None
) -> None:
    """Make equal inputs give equal bits: call it before CUDA starts.

    Args:
        device: Where the training will run.
        num_threads: Threads of the CPU kernels; None keeps torch's number, but fixes it.

    Raises:
        PorosConfigError: CUDA runs already, without the cuBLAS setting that it reads at its start.
    """
    on_cuda = torch.device(device).type == "cuda"
    if on_cuda and torch.cuda.is_initialized() and os.environ.get(_VARIABLE) != CUBLAS_WORKSPACE:
        raise PorosConfigError(
            f"CUDA was started without {_VARIABLE}={CUBLAS_WORKSPACE}",
            remediation="call enforce_determinism() before the first use of CUDA",
        )
    prepare_cuda()
    torch.use_deterministic_algorithms(True)
    # Filling costs 8 % and changes no bit that is read; debug runs poison the slots instead.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # set by its module class
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.set_num_threads(num_threads or torch.get_num_threads())


@dataclass(frozen=True)
class DeterminismSettings:
    """What `enforce_determinism` changes in this process, as it was before."""

    variable: str | None
    algorithms: bool
    warn_only: bool
    fill_memory: bool
    cudnn_deterministic: bool
    cudnn_benchmark: bool
    cudnn_sdp: bool
    num_threads: int

    @classmethod
    def now(cls) -> DeterminismSettings:
        """The settings of this moment."""
        return cls(
            variable=os.environ.get(_VARIABLE),
            algorithms=torch.are_deterministic_algorithms_enabled(),
            warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
            fill_memory=torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]  # as above
            cudnn_deterministic=torch.backends.cudnn.deterministic,
            cudnn_benchmark=torch.backends.cudnn.benchmark,
            cudnn_sdp=torch.backends.cuda.cudnn_sdp_enabled(),
            num_threads=torch.get_num_threads(),
        )

    def restore(self) -> None:
        """Put them back; a cuBLAS workspace that is made stays as it is."""
        if self.variable is None:
            os.environ.pop(_VARIABLE, None)
        else:
            os.environ[_VARIABLE] = self.variable
        torch.use_deterministic_algorithms(self.algorithms, warn_only=self.warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = self.fill_memory  # type: ignore[attr-defined]  # as above
        torch.backends.cudnn.deterministic = self.cudnn_deterministic
        torch.backends.cudnn.benchmark = self.cudnn_benchmark
        torch.backends.cuda.enable_cudnn_sdp(self.cudnn_sdp)
        torch.set_num_threads(self.num_threads)


def seed_all(seed: int) -> None:
    """Start Python's, NumPy's and torch's generators from ``seed``."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def rng_state(device: torch.device) -> dict[str, Tensor]:
    """The state of every generator that a step may draw from, as plain tensors."""
    _, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    assert kind == "MT19937"
    assert isinstance(keys, np.ndarray)
    state = {
        "python.words": torch.tensor(words, dtype=torch.int64),
        "python.gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
        "numpy.words": torch.tensor([*keys.tolist(), position, has_gauss], dtype=torch.int64),
        "numpy.gauss": torch.tensor([cached], dtype=torch.float64),
        "torch.cpu": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["torch.cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_rng_state(state: dict[str, Tensor], device: torch.device) -> None:
    """Put every generator where `rng_state` found it.

    Raises:
        PorosResumeError: The state is not one of this kind of device.
    """
    names = set(rng_state(device))
    if state.keys() != names or len(state["python.words"]) != _NUM_PYTHON_WORDS:
        raise PorosResumeError(
            f"random states {', '.join(sorted(state))} are not those of a {device.type} run",
            remediation="resume on the kind of device that wrote the checkpoint",
        )
    gauss = state["python.gauss"].tolist()
    random.setstate((3, tuple(state["python.words"].tolist()), gauss[0] if gauss else None))
    words = state["numpy.words"].tolist()
    position, has_gauss = words[_NUM_NUMPY_WORDS:]
    keys = np.array(words[:_NUM_NUMPY_WORDS], dtype=np.uint32)
    np.random.set_state(("MT19937", keys, position, has_gauss, state["numpy.gauss"].item()))
    torch.set_rng_state(state["torch.cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["torch.cuda"], device)
