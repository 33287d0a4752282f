import pytest

from poros.measure.mutants import MUTANTS, run_mutants

SHOWN_BY_A_LARGER_MODEL = {"nested absmax one ULP up", "forward without grad under compile"}
"""One ULP moves no bfloat16 weight of a tiny model; compiling takes a minute."""

NAMES = [mutant.name for mutant in MUTANTS]


pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def found(tiny_plan):
    chosen = [mutant for mutant in MUTANTS if mutant.name not in SHOWN_BY_A_LARGER_MODEL]
    return {record["name"]: record for record in run_mutants(tiny_plan, chosen=chosen)}


def test_there_are_enough_mutants_and_no_name_twice():
    assert len(set(NAMES)) == len(NAMES) >= 18


@pytest.mark.parametrize("name", [n for n in NAMES if n not in SHOWN_BY_A_LARGER_MODEL])
def test_a_mutant_is_red_where_predicted(found, name):
    assert found[name]["ok"], found[name]


def test_with_the_protections_on_the_same_disturbances_change_nothing(found):
    controls = [record for name, record in found.items() if name.startswith("(control)")]
    assert len(controls) == 12
    assert all(record["ok"] for record in controls), controls
