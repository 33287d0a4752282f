from __future__ import annotations

import pytest

from poros.arch_registry import architectures, find_architecture
from poros.arch_table import TABLE
from poros.errors import PorosArchNotValidatedError


@pytest.mark.parametrize("spec", TABLE, ids=lambda spec: spec.model_type)
def test_every_family_is_found_by_its_model_type(spec: object) -> None:
    assert find_architecture(spec.model_type) is spec  # type: ignore[attr-defined]


def test_no_family_stands_in_the_table_twice() -> None:
    assert len(architectures()) == len(TABLE)


@pytest.mark.parametrize("model_type", ["qwen", "Llama", "gpt2", None, 3])
def test_an_unknown_family_is_refused_with_the_known_ones(model_type: object) -> None:
    with pytest.raises(PorosArchNotValidatedError) as caught:
        find_architecture(model_type)
    assert "llama, qwen2, qwen3, mistral, phi3" in str(caught.value)
    assert caught.value.exit_code == 4
