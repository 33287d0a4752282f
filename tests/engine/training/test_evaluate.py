"""Evaluation weighs tokens and leaves no trace."""

import math

import torch

from poros.data.batches import batches_in_order
from poros.training.determinism import rng_state
from poros.training.evaluate import evaluate
from tests.engine.training.tiny_run import CPU, streamed, tiny_samples


def test_the_loss_is_a_mean_over_tokens_whatever_the_batch_size(tiny_folder):
    model, _ = streamed(tiny_folder)
    samples = tiny_samples(6)
    results = [
        evaluate(model, batches_in_order(samples, batch_size=n, pad_token_id=0), device=CPU)
        for n in (1, 4)
    ]
    assert results[0].num_label_tokens == sum(s.num_label_tokens for s in samples)
    assert math.isclose(results[0].loss, results[1].loss, rel_tol=1e-2)
    assert math.isclose(results[0].perplexity, math.exp(results[0].loss))


def test_random_states_mode_and_gradients_are_untouched(tiny_folder):
    model, _ = streamed(tiny_folder)
    before = rng_state(CPU)
    evaluate(model, batches_in_order(tiny_samples(4), batch_size=2, pad_token_id=0), device=CPU)
    after = rng_state(CPU)
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert model.training
    assert all(p.grad is None for p in model.parameters())
