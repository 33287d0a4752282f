import pytest

from poros.dropin import held_settings


@pytest.fixture(autouse=True)
def no_other_test_s_models(monkeypatch):
    """A model that a failed backward's traceback keeps alive holds the settings of the process."""
    monkeypatch.setattr(held_settings, "_holders", [])
