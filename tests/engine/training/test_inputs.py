"""What is refused before a weight is read."""

import pytest

from poros.errors import PorosArchNotValidatedError
from poros.events import Warned
from poros.training.inputs import check_status


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
