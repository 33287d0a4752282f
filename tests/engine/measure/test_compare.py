from dataclasses import replace

import pytest

from poros.measure.compare import expected_count, judge
from poros.measure.plan import Cell
from poros.measure.records import ArmRecord, StepRecord

CELL = Cell(
    name="c", model="llama", base_folder="", adapter="", batches="", layers_path="", num_steps=2,
    accumulation=2,
)  # fmt: skip
PROVED = {"streaming_proof": {"proved": True, "reason": ""}}
KINDS = ("grad", "adapter", "exp_avg", "exp_avg_sq")


def arm(**changes: str) -> ArmRecord:
    """Two steps of an arm with one adapter tensor; `changes` replace digests of step 2."""
    record = ArmRecord("c", [StepRecord(0, {"adapter.w": "start"})], dict(PROVED))
    for step in (1, 2):
        digests = {f"{kind}.w": f"{kind}{step}" for kind in KINDS}
        digests |= {"loss.0": f"a{step}", "loss.1": f"b{step}", "grad_norm": f"n{step}"}
        record.steps.append(StepRecord(step, digests))
    record.steps[2].digests.update({k.replace("__", "."): v for k, v in changes.items()})
    return record


def verdict(claim="B-bwd", left=None, right=None):
    return judge(claim, CELL, left or arm(), right or arm(), num_adapter_tensors=1)


@pytest.mark.parametrize(
    ("claim", "count"), [("A", 14), ("B-fwd", 4), ("B-bwd", 4), ("C", 14), ("D", 6)]
)
def test_equal_arms_pass_with_the_count_of_the_plan(claim, count):
    answer = verdict(claim)
    assert (answer.word, answer.num_compared, answer.num_expected) == ("PASS", count, count)
    assert expected_count(claim, CELL, 1, 2) == count


def test_the_first_difference_is_named_by_step_and_item():
    answer = verdict("B-fwd", right=arm(loss__1="other"))
    assert answer.word == "FAIL"
    found = answer.as_dict()["first_difference"]
    assert (found["step"], found["item"], found["micro_batch"]) == (2, "loss.1", 1)


def test_a_difference_belongs_to_the_claim_about_it():
    right = arm(exp_avg__w="other")
    assert verdict("D", right=right).word == "FAIL"
    assert verdict("B-fwd", right=right).word == "PASS"
    assert verdict("B-bwd", right=right).word == "PASS"


def test_an_item_that_one_side_lacks_fails():
    right = arm()
    del right.steps[1].digests["grad.w"]
    assert verdict(right=right).word == "FAIL"


def test_a_missing_arm_is_refused():
    answer = judge("D", CELL, arm(), None, num_adapter_tensors=1)
    assert (answer.word, answer.num_compared) == ("REFUSED", 0)


def test_nothing_compared_is_refused():
    empty = ArmRecord("c", [StepRecord(0, {}), StepRecord(1, {}), StepRecord(2, {})], PROVED)
    answer = verdict(left=empty, right=empty)
    assert (answer.word, answer.num_compared) == ("REFUSED", 0)


def test_a_step_that_both_arms_lack_is_refused():
    left, right = arm(), arm()
    left.steps.pop()
    right.steps.pop()
    assert "the plan has 4" in verdict(left=left, right=right).reason


def test_a_zero_gradient_and_a_zero_adapter_are_refused():
    left = arm()
    left.steps[1] = replace(left.steps[1], zeros=("grad.w",))
    assert verdict(left=left).word == "REFUSED"
    left = arm()
    left.steps[0] = replace(left.steps[0], zeros=("adapter.w",))
    assert verdict(left=left).word == "REFUSED"


def test_a_loss_that_stands_still_is_refused():
    still = arm(loss__0="a1", loss__1="b1")
    assert "does not change" in verdict(left=still, right=still).reason


def test_an_adapter_that_never_changed_is_refused():
    frozen = arm(adapter__w="start")
    assert "never changed" in verdict(left=frozen, right=frozen).reason


def test_an_arm_that_did_not_stream_is_refused():
    right = arm()
    right.end = {"streaming_proof": {"proved": False, "reason": "no copies"}}
    assert verdict(right=right).word == "REFUSED"
    right.end = {"duration_s": 1.0}
    assert verdict(right=right).word == "REFUSED"


def test_an_arm_that_broke_off_is_refused():
    right = arm()
    right.end = {}
    assert "reach its end" in verdict(right=right).reason
