import pytest
import torch

from poros.measure.gate import run_gate
from poros.measure.request import Request

pytestmark = pytest.mark.gpu


def test_a_card_is_there():
    assert torch.cuda.is_available(), "the GPU lane without a GPU is a failure, not a skip"


@pytest.mark.parametrize("autocast", [None, "bfloat16"])
def test_a_cut_down_qwen_streams_with_the_resident_bytes_and_every_mutant_is_red(
    tmp_path, autocast
):
    request = Request(
        target="shape", folder=str(tmp_path), model="qwen2.5-0.5b", device="cuda:0", num_layers=6,
        num_steps=4, seq_len=128, autocast=autocast,
    )  # fmt: skip
    outcome = run_gate(request, mutants=autocast is None, say=print)
    assert outcome.passed, [v for v in outcome.verdicts if v.word != "PASS"] + [
        m for m in outcome.mutants or [] if not m["ok"]
    ]
