import copy
import io
import pickle

import pytest
import torch
from peft import LoraConfig, PeftModel

import poros
from poros import failpoints
from poros.errors import PorosConfigError, PorosModelError, PorosOOMError
from poros.measure.fingerprint import same_bits
from poros.streaming.block import Block
from tests.engine.dropin.live import live_model, plain_loop
from tests.engine.loading.tiny_models import open_stock, write_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(params=["nf4", "bf16"])
def model(folder, request):
    return live_model(folder, precision=request.param)


def bytes_of(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def differing(found, expected):
    assert list(found) == list(expected)
    return [name for name in expected if not same_bits(found[name], expected[name])]


def printed(model, capsys):
    capsys.readouterr()
    model.print_trainable_parameters()
    return capsys.readouterr().out


def test_sizes_and_kinds_are_answered_as_before(model, capsys):
    def answers():
        base = model.get_base_model()
        return [
            model.device, base.dtype, base.num_parameters(),
            base.num_parameters(only_trainable=True),
            model.num_parameters(), model.get_memory_footprint(), base.get_memory_footprint(),
            model.get_nb_trainable_parameters(), printed(model, capsys),
        ]  # fmt: skip

    before = answers()
    poros.patch_hf_model(model)
    assert answers() == before


def test_the_state_dict_holds_the_base_s_bytes(model):
    before = bytes_of(model)
    poros.patch_hf_model(model)
    assert differing(model.state_dict(), before) == []
    assert differing(model.base_model.state_dict(), bytes_of(model.base_model)) == []


def test_a_state_dict_in_the_middle_of_a_step_changes_no_gradient(folder):
    def gradients(model, *, look):
        torch.manual_seed(3)
        ids = torch.randint(1, 128, (2, 9))
        loss = model(input_ids=ids, labels=ids).loss
        if look:
            model.state_dict()
        loss.backward()
        return {n: p.grad for n, p in model.named_parameters() if p.requires_grad}

    expected = gradients(live_model(folder), look=False)
    prepared = poros.patch_hf_model(live_model(folder))
    assert differing(gradients(prepared, look=True), expected) == []


def test_unprepare_gives_back_the_very_model(model):
    before, modules = bytes_of(model), list(model.modules())
    attributes = [set(vars(module)) for module in modules]
    poros.patch_hf_model(model)
    poros.unprepare(model)
    assert differing(bytes_of(model), before) == []
    assert [a is b for a, b in zip(model.modules(), modules, strict=True)] == [True] * len(modules)
    assert [set(vars(module)) for module in model.modules()] == attributes


def test_a_model_whose_ring_has_no_room_is_given_back(folder, monkeypatch):
    model = live_model(folder)
    before = bytes_of(model)
    failpoints.reset()
    monkeypatch.setenv(failpoints.VARIABLE, "train.room:oom@2")
    with pytest.raises(PorosOOMError, match="prepare it there") as caught:
        poros.prepare(model)
    assert caught.value.phase == "prepare"
    assert differing(bytes_of(model), before) == []
    poros.prepare(model)
    assert differing(model.state_dict(), before) == []


def test_a_model_that_does_not_fit_any_more_stays_prepared_and_whole(folder, monkeypatch):
    resident, streamed = live_model(folder), poros.patch_hf_model(live_model(folder))
    given_back = []
    bring_back = Block.bring_back

    def run_out(block, devices):
        given_back.append(block.index)
        if len(given_back) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0")
        bring_back(block, devices)

    monkeypatch.setattr(Block, "bring_back", run_out)
    with pytest.raises(PorosOOMError, match="the model stays prepared") as caught:
        poros.unprepare(streamed)
    assert (caught.value.phase, caught.value.asked_bytes) == ("unprepare", 2**30)
    assert differing(plain_loop(streamed), plain_loop(resident)) == []
    poros.unprepare(streamed)
    assert differing(bytes_of(streamed), bytes_of(resident)) == []
    assert len(given_back) == 2 + len(streamed.get_base_model().model.layers)


def test_a_model_trained_and_given_back_trains_on_to_the_same_bits(folder):
    resident, streamed = live_model(folder), poros.patch_hf_model(live_model(folder))
    plain_loop(resident), plain_loop(streamed)
    assert differing(plain_loop(poros.unprepare(streamed)), plain_loop(resident)) == []


def test_a_model_prepared_in_the_middle_of_training_trains_on_to_the_same_bits(folder):
    resident, streamed = live_model(folder), live_model(folder)
    plain_loop(resident, steps=1), plain_loop(streamed, steps=1)
    poros.patch_hf_model(streamed)
    assert differing(plain_loop(streamed, steps=1), plain_loop(resident, steps=1)) == []


def test_the_process_has_its_settings_again(folder):
    torch.use_deterministic_algorithms(False)
    model = poros.patch_hf_model(live_model(folder))
    assert torch.are_deterministic_algorithms_enabled()
    poros.unprepare(model)
    assert not torch.are_deterministic_algorithms_enabled()


def test_determinism_is_left_alone_if_asked(folder, capsys):
    torch.use_deterministic_algorithms(False)
    poros.prepare(live_model(folder), deterministic=False)
    assert not torch.are_deterministic_algorithms_enabled()
    assert "none: determinism is left to you" in capsys.readouterr().out


def test_the_adapter_is_saved_as_before(model, tmp_path):
    model.save_pretrained(tmp_path / "before")
    poros.patch_hf_model(model).save_pretrained(tmp_path / "after")
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (tmp_path / "after" / name).read_bytes() == (tmp_path / "before" / name).read_bytes()


def test_an_adapter_is_loaded_into_a_prepared_model(folder, tmp_path):
    trained, fresh = live_model(folder), poros.patch_hf_model(live_model(folder))
    plain_loop(trained)
    trained.save_pretrained(tmp_path)
    fresh.load_adapter(tmp_path, "default", is_trainable=True)
    assert differing(plain_loop(fresh), plain_loop(trained)) == []


def test_without_its_adapter_it_computes_the_base(model):
    ids = torch.arange(1, 9)[None]
    model.eval()
    with torch.no_grad(), model.disable_adapter():
        before = model(input_ids=ids).logits
    poros.patch_hf_model(model)
    with torch.no_grad(), model.disable_adapter():
        assert same_bits(model(input_ids=ids).logits, before)


def test_it_generates_the_same_tokens(model):
    ids = torch.arange(1, 9)[None]
    model.eval()
    before = model.generate(input_ids=ids, max_new_tokens=5, do_sample=False)
    poros.patch_hf_model(model)
    assert same_bits(model.generate(input_ids=ids, max_new_tokens=5, do_sample=False), before)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.float(),
        lambda m: m.to("meta"),
        lambda m: m.get_base_model().model.to(torch.float64),
        copy.deepcopy,
        pickle.dumps,
        lambda m: torch.save(m, io.BytesIO()),
        lambda m: copy.copy(m),
        lambda m: m.merge_and_unload(),
        lambda m: m.merge_adapter(),
    ],
    ids=["float", "to", "inner", "deepcopy", "pickle", "save", "copy", "merge", "adapter"],
)
def test_moving_and_copying_are_refused(folder, change):
    model = poros.patch_hf_model(live_model(folder, precision="bf16"))
    before = bytes_of(model)
    with pytest.raises(PorosModelError, match="a prepared model"):
        change(model)
    assert differing(bytes_of(model), before) == []


def test_it_may_be_moved_to_where_it_is(folder):
    model = poros.patch_hf_model(live_model(folder, precision="bf16"))
    assert model.to("cpu") is model


def test_prepared_twice_it_is_prepared_once(folder):
    model = poros.patch_hf_model(live_model(folder))
    assert poros.patch_hf_model(model) is model
    with pytest.raises(PorosConfigError, match="with another block_size"):
        poros.patch_hf_model(model, block_size=2)
    poros.unprepare(model)
    with pytest.raises(PorosModelError, match="not prepared"):
        poros.unprepare(model)


def test_a_filter_keeps_parameters_on_the_device(folder):
    model = live_model(folder, precision="bf16")
    poros.patch_hf_model(model, managed_parameter_filter=lambda name, _: "down_proj" not in name)
    layer = model.get_base_model().model.layers[0]
    assert layer.mlp.down_proj.base_layer.weight.numel() > 0
    assert layer.mlp.up_proj.base_layer.weight.numel() == 0


def test_a_base_without_adapters_streams_too(folder):
    ids = torch.arange(1, 9)[None]
    model = open_stock(folder).requires_grad_(False)
    with torch.no_grad():
        before = model(input_ids=ids).logits
        assert same_bits(poros.patch_hf_model(model)(input_ids=ids).logits, before)


def test_an_adapter_put_on_later_is_kept_on_the_device(folder):
    model = poros.patch_hf_model(live_model(folder))
    assert isinstance(model, PeftModel)
    model.add_adapter("second", model.peft_config["default"])
    model.set_adapter("second")
    assert all(p.numel() for n, p in model.named_parameters() if ".second." in n)


@pytest.mark.parametrize("begins", [{"use_dora": True}, {"init_lora_weights": "pissa"}])
def test_an_adapter_made_from_the_base_s_weights_is_refused_later(folder, begins):
    model = poros.patch_hf_model(live_model(folder))
    with pytest.raises(PorosModelError, match="prepare it with the adapter on"):
        model.add_adapter("second", LoraConfig(target_modules=["q_proj"], **begins))
    assert list(model.peft_config) == ["default"]
