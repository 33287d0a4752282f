"""A checkpoint does not show where the state lay, and a resume may put it elsewhere."""

from __future__ import annotations

import pytest
import torch

from poros.measure.fingerprint import first_difference
from poros.training.checkpoint import TrainerState, load_checkpoint, save_checkpoint, verify
from tests.engine.loading.tiny_models import write_model
from tests.engine.training.host_runs import ADAPTERS, MOMENTS, STOCK, open_run
from tests.engine.training.tiny_run import CPU

PLANS = {"stock": STOCK, "moments": MOMENTS, "adapters": ADAPTERS}
STATE = TrainerState(
    run_id="aa", step=2, cursor={"epoch": 0, "position": 4}, events_bytes=0, loss=1.0, exact=True,
    inputs={},
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("five"), num_hidden_layers=5)


@pytest.fixture(scope="module")
def saved(folder, tmp_path_factory):
    """Each plan's checkpoint of step 2, and what its third step showed."""
    found = {}
    for name, plan in PLANS.items():
        run = open_run(folder, plan)
        run.step(0)
        run.step(1)
        path = tmp_path_factory.mktemp(name) / "step-000002"
        save_checkpoint(
            path, model=run.model, params=run.params, optimizer=run.optimizer, device=CPU,
            state=STATE,
        )  # fmt: skip
        run.seen.clear()
        run.step(2)
        found[name] = path, run.seen
    return found


@pytest.mark.parametrize("name", ["moments", "adapters"])
def test_the_files_have_the_bytes_of_stocks(saved, name):
    verify(saved[name][0])
    files = {path.relative_to(saved["stock"][0]) for path in saved["stock"][0].rglob("*.*")}
    assert len(files) == 7
    for file in files:
        assert (saved["stock"][0] / file).read_bytes() == (saved[name][0] / file).read_bytes(), file


@pytest.mark.parametrize(
    ("source", "target"),
    [("stock", "adapters"), ("adapters", "stock"), ("adapters", "adapters"), ("stock", "moments")],
)
def test_a_run_goes_on_with_its_state_elsewhere(folder, saved, source, target):
    path, expected = saved[source]
    run = open_run(folder, PLANS[target], adapter_path=path)
    for _ in range(2):
        next(run.batches)
    torch.manual_seed(99)
    load_checkpoint(path, params=run.params, optimizer=run.optimizer, device=CPU)
    run.step(2)
    assert expected
    assert first_difference(expected, run.seen) is None


def test_a_checkpoint_before_the_first_step_has_no_moments(folder, tmp_path):
    run = open_run(folder, ADAPTERS)
    save_checkpoint(
        tmp_path / "step-000000", model=run.model, params=run.params, optimizer=run.optimizer,
        device=CPU, state=STATE,
    )  # fmt: skip
    again = open_run(folder, ADAPTERS)
    load_checkpoint(
        tmp_path / "step-000000", params=again.params, optimizer=again.optimizer, device=CPU
    )
    assert not again.optimizer.state
