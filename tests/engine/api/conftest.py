from pathlib import Path

import pytest

from tests.engine.training.tiny_run import write_chat_model


@pytest.fixture(scope="session")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama on disk, with a tokenizer."""
    return write_chat_model(tmp_path_factory.mktemp("chat") / "model")
