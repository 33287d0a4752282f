"""Random states travel as plain numbers and come back exactly."""

import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from poros.errors import PorosResumeError
from poros.training.determinism import rng_state, seed_all, set_rng_state

CPU = torch.device("cpu")

IN_A_NEW_PROCESS = """
import json, os, torch
from poros.config import PorosConfig
from poros.training import determinism, work
asked = []
def device_count():
    asked.append(os.environ.get("CUBLAS_WORKSPACE_CONFIG"))
    return 0
torch.cuda.device_count = device_count
def stop(*_, **__): raise SystemExit
work.enforce_determinism = stop
try: work.Work(PorosConfig(dataset="x"), None, None, None, None, None).run()
except SystemExit: first = list(asked)
os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
determinism.enforce_determinism("cpu", num_threads=1)
print(json.dumps({
    "asked": first,
    "cublas": os.environ["CUBLAS_WORKSPACE_CONFIG"],
    "deterministic": torch.are_deterministic_algorithms_enabled(),
    "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
    "cudnn_attention": torch.backends.cuda.cudnn_sdp_enabled(),
    "fill": torch.utils.deterministic.fill_uninitialized_memory,
    "num_threads": torch.get_num_threads(),
}))
"""


@pytest.fixture(scope="module")
def found():
    """What a process that sets its flags once for all has seen."""
    environment = {k: v for k, v in os.environ.items() if k != "CUBLAS_WORKSPACE_CONFIG"}
    done = subprocess.run(
        [sys.executable, "-c", IN_A_NEW_PROCESS],
        env=environment, check=True, timeout=280, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def draw() -> list[float]:
    numbers = [random.random(), random.gauss(0, 1), float(np.random.rand())]
    return [*numbers, float(np.random.randn()), *torch.rand(3).tolist()]


@pytest.mark.parametrize("num_draws", [0, 1, 2, 3])
def test_every_generator_repeats_its_numbers(num_draws):
    seed_all(5)
    for _ in range(num_draws):
        draw()
    state = rng_state(CPU)
    assert all(isinstance(tensor, torch.Tensor) for tensor in state.values())
    expected = draw()
    draw()
    set_rng_state(state, CPU)
    assert draw() == expected


def test_equal_seeds_give_equal_numbers():
    seed_all(1)
    first = draw()
    seed_all(1)
    assert draw() == first


def test_states_of_another_kind_of_device_are_refused():
    state = rng_state(CPU) | {"torch.cuda": torch.zeros(16, dtype=torch.uint8)}
    with pytest.raises(PorosResumeError):
        set_rng_state(state, CPU)


def test_the_flags_are_set_without_warn_only(found):
    assert found["cublas"] == ":4096:8"
    assert found["deterministic"]
    assert not found["warn_only"]
    assert not found["cudnn_attention"]
    assert not found["fill"]
    assert found["num_threads"] == 1


def test_cublas_is_told_before_anything_asks_about_a_gpu(found):
    assert found["asked"] == [":4096:8"]
