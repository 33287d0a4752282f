"""Head and embeddings on the host: resident bits, answers and evaluation, and what is refused."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from poros.config import PorosConfig
from poros.data.batches import batches_in_order
from poros.errors import PorosModelError
from poros.events import EvaluationFinished, ModelLoaded, SampleGenerated
from poros.loading.base_model import load_base_model, place_ends
from poros.loading.byte_source import SafetensorsSource
from poros.measure.fingerprint import same_bits
from poros.memory_plan import MemoryPlan, memory_plan
from poros.streaming.attach import SideRules, attach
from poros.streaming.block_manager import BlockManager
from poros.training.evaluate import evaluate
from poros.training.host_ends import take_ends
from poros.training.kv_cache import is_kv_cache
from poros.training.lora import attach_lora, trainable_params
from poros.training.session import Session
from poros.training.streamed_head import DeferredLogits
from tests.engine.loading.tiny_models import CPU, E_FORM, FAMILIES, is_refused, write_model
from tests.engine.training.tiny_run import results_of, tiny_samples, tiny_settings

BOTH = MemoryPlan(head_on_host=True, embeddings_on_host=True)
PLANS = (BOTH, MemoryPlan(head_on_host=True), MemoryPlan(embeddings_on_host=True))
MODELS = {
    "llama, untied": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "gemma2, softcap and scaled rows": (
        "gemma2",
        FAMILIES["gemma2"] | {"tie_word_embeddings": True},
    ),
    "granite, divisor": ("granite", FAMILIES["granite"]),
    "cohere2, multiplier": ("cohere2", FAMILIES["cohere2"] | {"tie_word_embeddings": True}),
    "gpt_neox": ("gpt_neox", {}),
}


class Opened:
    """A model on the ring with its ends where a plan has them."""

    def __init__(self, folder, plan, *, prefetch=True, adapt=None, **lora):
        self.base = load_base_model(
            SafetensorsSource(folder), device=CPU, cache=None, emit=lambda _: None
        )
        self.ends = take_ends(self.base, plan, CPU)
        place_ends(self.base, CPU, without=self.ends.paths)
        adapt = adapt or (lambda base: attach_lora(base, rank=4, dropout=0.1, seed=7, **lora))
        self.model = adapt(self.base)
        self.manager = BlockManager(self.base.blocks, device=CPU)
        spec = self.base.architecture
        attach(
            self.base.layers, self.manager, device=CPU, drop=is_kv_cache,
            rules=SideRules(spec.per_layer_input, spec.shared_states), model=self.base.model,
        )  # fmt: skip
        self.warned = []
        self.head = self.ends.attach(
            self.base.model, self.manager, prefetch=prefetch, emit=self.warned.append,
            num_chunk_rows=16,
        )  # fmt: skip
        self.model.train()

    def step(self, *, autocast=False, accumulation=2):
        """Losses and gradients of a few micro-batches."""
        torch.manual_seed(5)
        found = []
        params = trainable_params(self.model)
        for _, parameter in params:
            parameter.grad = None
        for batch in list(batches_in_order(tiny_samples(6), batch_size=3, pad_token_id=0))[
            :accumulation
        ]:
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                inputs = batch.model_inputs(CPU)
                loss = self.model(**inputs, labels=batch.labels_BT, num_items_in_batch=31).loss
            loss.backward()
            found.append(loss.detach())
        return [*found, *(p.grad for _, p in params)]


def check_models():
    models = dict(MODELS)
    if not is_refused("gemma4_text"):
        models["gemma4, rows for each layer"] = (
            "gemma4_text", E_FORM | {"tie_word_embeddings": True},
        )  # fmt: skip
    return models


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def folder(name):
        if name not in made:
            family, changes = check_models()[name]
            path = tmp_path_factory.mktemp("model") / family
            made[name] = write_model(path, model_type=family, **changes)
        return made[name]

    return folder


@pytest.mark.parametrize("name", check_models())
def test_losses_and_gradients_are_those_of_resident_ends(folders, name):
    folder = folders(name)
    resident = Opened(folder, MemoryPlan())
    for autocast in (False, True):
        expected = resident.step(autocast=autocast)
        for plan in PLANS if name == "llama, tied" else (BOTH,):
            found = Opened(folder, plan).step(autocast=autocast)
            assert len(found) == len(expected) > 20
            assert all(map(same_bits, expected, found)), plan


@pytest.mark.parametrize("name", ["llama, tied", "gemma2, softcap and scaled rows"])
def test_evaluation_and_answers_are_those_of_resident_ends(folders, name):
    batches = list(batches_in_order(tiny_samples(6), batch_size=3, pad_token_id=0))
    results = []
    for plan in (MemoryPlan(), *PLANS):
        opened = Opened(folders(name), plan)
        loss = evaluate(opened.model, batches, device=CPU).loss
        ids = torch.tensor([[3, 9, 4], [5, 6, 7]])
        with torch.no_grad():
            logits = opened.model.eval()(input_ids=ids).logits
        results.append((loss, logits, opened.model.generate(input_ids=ids, max_new_tokens=5)))
        assert opened.head is None or not opened.head.visitor.present
    for loss, logits, tokens in results[1:]:
        assert loss == results[0][0]
        assert same_bits(logits, results[0][1])
        assert tokens.equal(results[0][2])


def test_the_head_visits_once_a_micro_batch_and_is_gone_after_it(folders):
    opened = Opened(folders("llama, untied"), BOTH)
    opened.step()
    assert opened.head.visitor.num_copies == 2
    assert not opened.head.visitor.present
    assert [tensor.numel() for tensor in opened.ends.away().values()] == [0, 0]


@pytest.mark.parametrize("prefetch", [True, False])
def test_the_head_is_fetched_beside_the_last_blocks_if_there_is_room(folders, prefetch):
    opened = Opened(folders("llama, untied"), BOTH, prefetch=prefetch)
    present, own = [], opened.base.layers[-1].forward

    def last_layer(*args, **kwargs):
        result = own(*args, **kwargs)
        present.append(opened.head.visitor.present)
        return result

    opened.base.layers[-1].forward = last_layer
    opened.step(accumulation=1)
    assert present == [prefetch]
    assert opened.head.visitor.num_copies == 1


def test_a_forward_whose_backward_never_comes_leaves_no_head_behind(folders):
    opened = Opened(folders("llama, untied"), BOTH)
    batch = next(iter(batches_in_order(tiny_samples(2), batch_size=2, pad_token_id=0)))
    loss = opened.model(**batch.model_inputs(CPU), labels=batch.labels_BT).loss
    assert opened.head.visitor.present
    del loss
    assert not opened.head.visitor.present


def test_a_tied_head_and_its_embedding_are_one_tensor_on_the_host(folders):
    opened = Opened(folders("llama, tied"), BOTH)
    (embedding,) = opened.ends.embeddings.values()
    weight = opened.ends.block.tensor("weight")
    assert embedding.weight.data_ptr() == weight.data_ptr()
    assert opened.ends.num_bytes == opened.ends.block.num_bytes
    assert opened.base.model.device == CPU


def test_detached_the_model_has_its_own_forwards_back(folders):
    opened = Opened(
        folders("llama, untied"), MemoryPlan(embeddings_on_host=True, head_on_host=True)
    )
    opened.head.detach()
    model = opened.base.model
    assert not {"forward", "_loss_function"} & vars(model).keys()
    assert "forward" not in vars(model.lm_head)


def adapted(*targets):
    def adapt(base):
        config = LoraConfig(r=4, target_modules=[*targets, "q_proj"], task_type="CAUSAL_LM")
        return get_peft_model(base.model, config)

    return adapt


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_an_end_with_an_adapter_stays_resident_and_the_bits_stocks(folders, target):
    folder = folders("llama, untied")
    torch.manual_seed(1)
    expected = Opened(folder, MemoryPlan(), adapt=adapted(target)).step()
    torch.manual_seed(1)
    opened = Opened(folder, BOTH, adapt=adapted(target))
    assert (opened.head is None) == (target == "lm_head")
    assert [event.code for event in opened.warned] == ["head-resident"] * (target == "lm_head")
    assert all(map(same_bits, expected, opened.step()))


def test_a_head_that_is_no_plain_linear_stays_resident_and_the_run_says_so(folders):
    class OddHead(nn.Linear):
        pass

    folder = folders("llama, untied")
    base = load_base_model(SafetensorsSource(folder), device=CPU, cache=None, emit=lambda _: None)
    base.model.lm_head.__class__ = OddHead
    ends = take_ends(base, BOTH, CPU)
    assert "OddHead, not a plain linear" in ends.why_resident
    assert ends.paths == ("model.embed_tokens",)


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda logits: torch.exp(logits), "calls exp"),
        (lambda logits: logits * torch.ones(3), "combines its logits with a Tensor"),
        (lambda logits: logits[:, -1], "takes a part"),
        (lambda logits: logits + 1, "adds to"),
        (lambda logits: logits.float(), "asks for float"),
    ],
)
def test_what_is_not_known_to_be_row_by_row_is_refused_by_name(use, words):
    with pytest.raises(PorosModelError, match=words) as refused:
        use(DeferredLogits(torch.ones(1, 2, 3)))
    assert "vram_budget: auto" in refused.value.remediation


def test_logits_with_gradients_are_refused(folders):
    opened = Opened(folders("llama, untied"), BOTH)
    with pytest.raises(RuntimeError, match="give labels"):
        opened.model(input_ids=torch.tensor([[1, 2, 3]]))


def test_only_the_smallest_budget_moves_anything():
    plan = memory_plan("min")
    assert plan.head_on_host
    assert plan.embeddings_on_host
    assert memory_plan("auto") == memory_plan(3.5) == MemoryPlan()


def test_a_run_with_the_least_memory_has_the_bits_of_one_with_more(
    chat_folder, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = []
    for budget in ("auto", "min"):
        folder = tmp_path / budget
        folder.mkdir()
        settings = tiny_settings(chat_folder, folder) | {
            "vram_budget": budget, "samples": ("what is 3?",), "sample_tokens": 4, "max_steps": 3,
            "eval_dataset": str(folder / "data.jsonl"),
        }  # fmt: skip
        seen = []
        Session(PorosConfig(**settings), listeners=[lambda event, _, s=seen: s.append(event)]).run()
        found.append((results_of(folder / "out"), seen))
    torch.use_deterministic_algorithms(False)
    (auto, auto_events), (least, least_events) = found
    assert auto.items() == least.items()
    for kind, key in ((EvaluationFinished, "eval_loss"), (SampleGenerated, "text")):
        texts = [
            [getattr(e, key) for e in seen if isinstance(e, kind)]
            for seen in (auto_events, least_events)
        ]
        assert texts[0] == texts[1] != []
    loaded = [next(e for e in seen if isinstance(e, ModelLoaded)) for _, seen in found]
    moved = loaded[0].resident_bytes - loaded[1].resident_bytes
    assert moved == loaded[1].host_bytes - loaded[0].host_bytes > 0
