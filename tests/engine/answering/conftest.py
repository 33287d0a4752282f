from pathlib import Path

import pytest

from tests.engine.export.adapters import write_adapter, write_base


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("base") / "base", tie_word_embeddings=False)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Path:
    return write_adapter(tmp_path_factory.mktemp("adapter") / "adapter", base)
