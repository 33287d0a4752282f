from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from poros.loading.seeded_source import SeededSource, write_checkpoint
from poros.measure.plan import Plan
from poros.measure.prepare import prepare
from poros.measure.request import Request
from poros.measure.shapes import shape_config
from tests.engine.measure.in_process import in_this_process

FEW_LEVELS = {
    "model": ("llama", "qwen2", "phi3"),
    "block_size": (1, 2),
    "batch_form": ("padding", "packing"),
    "dropout": (0.05,),
    "accumulation": (2,),
    "autocast": (None, "bfloat16"),
    "use_cache": (True,),
    "num_slots": (2,),
    "adapter_dtype": ("float32", "bfloat16"),
    "compile": (False,),
}
NUM_LAYERS = 6


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory) -> Path:
    """A random llama of six layers, as a folder of safetensors."""
    folder = tmp_path_factory.mktemp("tiny") / "llama"
    config = shape_config("tiny-llama", num_layers=NUM_LAYERS)
    write_checkpoint(SeededSource(config, seed=0), folder, device=torch.device("cpu"))
    return folder


@pytest.fixture(scope="session")
def tiny_request(tiny_llama, tmp_path_factory) -> Request:
    folder = tmp_path_factory.mktemp("parity")
    return Request(
        target="demo", folder=str(folder), model=str(tiny_llama), num_steps=4, levels=FEW_LEVELS
    )


@pytest.fixture(scope="session")
def tiny_plan(tiny_request) -> Plan:
    """The plan of `tiny_request`, in this process."""
    return prepare(tiny_request)


@pytest.fixture
def no_processes() -> Iterator[None]:
    """The gate's jobs run in the process of the test."""
    with in_this_process():
        yield
