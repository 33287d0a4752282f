"""What is refused before a weight is read."""

import pytest

from poros.config import PorosConfig
from poros.errors import PorosArchNotValidatedError, PorosConfigError
from poros.events import Warned
from poros.training.inputs import check_status, refuse_short_window


@pytest.mark.parametrize(
    ("status", "setting", "warned"),
    [
        ("certified", "error", False),
        ("certified", "warn", False),
        ("experimental", "error", False),
        ("experimental", "warn", True),
        ("user_asserted", "warn", True),
        ("user_asserted", "off", False),
    ],
)
def test_a_family_without_proof_is_warned_about_where_that_is_asked_for(status, setting, warned):
    seen = []
    check_status(status, setting, seen.append)
    assert [type(event) for event in seen] == [Warned] * warned


@pytest.mark.parametrize("status", ["target", "user_asserted"])
def test_a_family_that_only_its_user_vouches_for_is_refused_by_default(status):
    with pytest.raises(PorosArchNotValidatedError, match="blockwise_arch_check: warn"):
        check_status(status, "error", lambda event: None)


@pytest.mark.parametrize("window", [16, 63])
def test_packing_is_refused_where_it_would_lose_the_sliding_window(window):
    config = PorosConfig(packing=True, max_seq_length=64)
    with pytest.raises(PorosConfigError, match=f"window of {window}"):
        refuse_short_window(config, {"sliding_window": window})


@pytest.mark.parametrize(
    ("packing", "model"),
    [
        (True, {"sliding_window": 64}),
        (True, {"sliding_window": None}),
        (True, {"sliding_window": 16, "use_sliding_window": False}),
        (False, {"sliding_window": 16}),
    ],
)
def test_packing_is_accepted_where_no_window_is_lost(packing, model):
    refuse_short_window(PorosConfig(packing=packing, max_seq_length=64), model)
