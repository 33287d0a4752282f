from pathlib import Path

import pytest

from tests.engine.training.tiny_run import write_chat_model, write_tiny


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama on disk, without a tokenizer."""
    return write_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama on disk, with a tokenizer."""
    return write_chat_model(tmp_path_factory.mktemp("chat") / "model")
