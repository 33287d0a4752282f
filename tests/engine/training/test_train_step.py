"""A step does what stock calls do, and stops before it can spoil anything."""

import pytest
import torch

from poros.errors import PorosNonFiniteError
from poros.measure.fingerprint import same_bits
from poros.training.lora import trainable_params
from poros.training.optimizer import make_optimizer
from poros.training.train_step import train_step
from tests.engine.training.tiny_run import CPU, streamed, tiny_batches


def setup(folder, **settings):
    model, _ = streamed(folder, **settings)
    params = trainable_params(model)
    return model, params, make_optimizer(params, weight_decay=0.01)


def step(model, params, optimizer, batches, **settings):
    arguments = {"device": CPU, "learning_rate": 1e-2, "max_grad_norm": 1.0}
    return train_step(model, params, optimizer, batches, **(arguments | settings))


def test_everything_the_gate_compares_is_observed_once(tiny_folder):
    model, params, optimizer = setup(tiny_folder)
    seen = []
    step(model, params, optimizer, tiny_batches().next_step(), observe=lambda n, t: seen.append(n))
    kinds = ("grad", "adapter", "exp_avg", "exp_avg_sq")
    expected = {f"{kind}.{name}" for kind in kinds for name, _ in params}
    assert sorted(seen) == sorted(expected | {"loss.0", "loss.1", "grad_norm"})


def test_two_steps_equal_the_plain_calls(tiny_folder):
    ours, our_params, our_optimizer = setup(tiny_folder)
    stock, stock_params, stock_optimizer = setup(tiny_folder)
    batches = tiny_batches()
    for _ in range(2):
        micro_batches = batches.next_step()
        torch.manual_seed(9)
        result = step(ours, our_params, our_optimizer, micro_batches)
        torch.manual_seed(9)
        num_items = sum(int((b.labels_BT[:, 1:] != -100).sum()) for b in micro_batches)
        losses = []
        for batch in micro_batches:
            inputs = batch.model_inputs(CPU)
            loss = stock(**inputs, labels=batch.labels_BT, num_items_in_batch=num_items).loss
            loss.backward()
            losses.append(loss.item())
        weights = [p for _, p in stock_params]
        norm = torch.nn.utils.clip_grad_norm_(weights, 1.0)
        stock_optimizer.param_groups[0]["lr"] = 1e-2
        stock_optimizer.step()
        stock_optimizer.zero_grad(set_to_none=True)
        assert (result.loss, result.grad_norm) == (sum(losses), norm.item())
    assert all(same_bits(a, b) for (_, a), (_, b) in zip(our_params, stock_params, strict=True))


def test_once_stepped_nothing_asks_for_memory(tiny_folder, monkeypatch):
    model, params, optimizer = setup(tiny_folder)
    stack, stepped = torch.stack, []

    def refused(*arguments, **settings):
        if stepped:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return stack(*arguments, **settings)

    monkeypatch.setattr(torch, "stack", refused)
    optimizer.register_step_post_hook(lambda *_: stepped.append(True))
    result = step(model, params, optimizer, tiny_batches().next_step())
    assert stepped
    assert result.loss > 0


def test_a_bad_loss_stops_before_the_step_and_names_the_samples(tiny_folder):
    model, params, optimizer = setup(tiny_folder)
    batches = tiny_batches()
    step(model, params, optimizer, batches.next_step())
    with torch.no_grad():
        params[0][1].fill_(float("nan"))
    before = {name: p.detach().clone() for name, p in params}
    moments = [optimizer.state[p]["exp_avg"].clone() for _, p in params]
    micro_batches = batches.next_step()
    with pytest.raises(PorosNonFiniteError, match="loss of micro-batch 0") as caught:
        step(model, params, optimizer, micro_batches)
    assert caught.value.exit_code == 12
    assert str(micro_batches[0].sample_ids[0]) in caught.value.where
    assert all(same_bits(before[name], p) for name, p in params)
    after = [optimizer.state[p]["exp_avg"] for _, p in params]
    assert all(same_bits(a, b) for a, b in zip(moments, after, strict=True))


def test_a_bad_gradient_is_named_by_its_tensor(tiny_folder):
    model, params, optimizer = setup(tiny_folder)
    name, parameter = params[3]
    parameter.register_hook(lambda grad: grad * float("inf"))
    with pytest.raises(PorosNonFiniteError, match=f"the gradient of {name} is not finite"):
        step(model, params, optimizer, tiny_batches().next_step())
    assert not optimizer.state
