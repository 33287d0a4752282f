from __future__ import annotations

import pytest

from poros.architectures import ARCHITECTURES, find_architecture
from poros.errors import PorosArchNotValidatedError


@pytest.mark.parametrize("record", ARCHITECTURES, ids=lambda record: record.model_type)
def test_every_family_is_found_by_its_model_type(record: object) -> None:
    assert find_architecture(record.model_type) is record  # type: ignore[attr-defined]


def test_no_family_claims_more_than_an_artifact_shows() -> None:
    assert {record.status for record in ARCHITECTURES} == {"experimental"}


@pytest.mark.parametrize("model_type", ["qwen", "Llama", "gpt2", None, 3])
def test_an_unknown_family_is_refused_with_the_known_ones(model_type: object) -> None:
    with pytest.raises(PorosArchNotValidatedError) as caught:
        find_architecture(model_type)
    assert "llama, qwen2, qwen3, mistral, phi3" in str(caught.value)
    assert caught.value.exit_code == 4
