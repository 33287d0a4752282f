"""What a packed document's logits depend on, family by family."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from poros.data.batches import collate_packed
from poros.data.samples import IGNORED, Sample
from poros.measure.family_cells import packs
from poros.measure.family_models import WINDOW, families_of, too_old, write_model

FIRST, SECOND = 9, 8
HERE = [model for model in families_of("all") if not too_old(model)]


def name_of(model):
    return f"{model.family}-{model.variant}" if model.variant else model.family


def packed_logits(model, first, second):
    """Logits of the two documents in one row, which has padding too."""
    samples = [
        Sample(k, tuple(ids), (IGNORED, *ids[1:]), line=k) for k, ids in enumerate((first, second))
    ]
    batch = collate_packed([tuple(samples)], width=WINDOW, pad_token_id=0)
    with torch.no_grad():
        logits_TV = model(**batch.model_inputs(torch.device("cpu"))).logits[0]
    return logits_TV[:FIRST], logits_TV[FIRST : FIRST + SECOND]


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")

    def open_text(model):
        _, text = write_model(model, folder / name_of(model))
        attention = model.spec.attentions[0]
        stock = AutoModelForCausalLM.from_pretrained(
            text, dtype=torch.bfloat16, attn_implementation=attention
        )
        return stock.eval()

    return open_text


def seen_by_the_second(stock):
    """Whether another first document changes the second's logits; both do change something."""
    one, other = list(range(10, 10 + FIRST)), list(range(60, 60 + FIRST))
    second = list(range(110, 110 + SECOND))
    mine, before = packed_logits(stock, one, second)
    changed, after = packed_logits(stock, other, second)
    own = packed_logits(stock, one, [second[0] + 20, *second[1:]])[1]
    assert not torch.equal(bits(mine), bits(changed))
    assert not torch.equal(bits(before[1:]), bits(own[1:]))
    return not torch.equal(bits(before), bits(after))


@pytest.mark.parametrize("model", [m for m in HERE if packs(m)], ids=name_of)
def test_another_first_document_changes_no_logit_of_the_second(model, opened):
    assert not seen_by_the_second(opened(model))


@pytest.mark.parametrize("model", [m for m in HERE if m.spec.recurrent], ids=name_of)
def test_where_a_state_is_carried_it_would_which_is_why_packing_is_refused(model, opened):
    assert seen_by_the_second(opened(model))
