"""Every setting either changes the result, and is compared, or is declared not to."""

from poros.config import PorosConfig
from poros.training.run_inputs import INVARIANT, NUMERIC, compare_inputs


def test_every_setting_is_declared_once():
    assert sorted((*NUMERIC, *INVARIANT)) == sorted(PorosConfig.model_fields)


def test_equal_inputs_are_no_error_and_differences_make_a_table():
    assert compare_inputs({"a": 1}, {"a": 1}, where="x") is None
    error = compare_inputs({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 3, "d": 4}, where="x")
    assert error is not None
    for part in ("b: 2 -> 3", "c: 3 -> None", "d: None -> 4"):
        assert part in error.message
    assert "a: " not in error.message
