import pytest
import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

import poros
from poros.measure.fingerprint import same_bits
from tests.engine.dropin.live import live_model, state_of
from tests.engine.loading.tiny_models import write_model


class Rows(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        ids = torch.randint(1, 128, (9,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("tiny"))


def trainer_of(model, out, *, bf16):
    args = TrainingArguments(
        output_dir=str(out),
        max_steps=4,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        bf16=bf16,
        gradient_checkpointing=True,
        save_steps=2,
        eval_strategy="steps",
        eval_steps=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    return Trainer(model, args, train_dataset=Rows(), eval_dataset=Rows())


def trained_by(trainer, **how):
    trainer.train(**how)
    trained = {n: p for n, p in trainer.model.named_parameters() if p.requires_grad}
    return state_of(trained, trainer.optimizer.optimizer)


def differing(found, expected):
    assert found.keys() == expected.keys()
    return [name for name in expected if not same_bits(found[name], expected[name])]


@pytest.mark.filterwarnings("ignore")  # the libraries' own
@pytest.mark.parametrize("bf16", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_trainer_trains_and_resumes_to_the_same_bits(folder, tmp_path, bf16):
    poros.enforce_determinism()
    expected = trained_by(trainer_of(live_model(folder), tmp_path / "resident", bf16=bf16))
    prepared = poros.patch_hf_model(live_model(folder))
    assert differing(trained_by(trainer_of(prepared, tmp_path, bf16=bf16)), expected) == []
    again = trainer_of(poros.patch_hf_model(live_model(folder)), tmp_path, bf16=bf16)
    resumed = trained_by(again, resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert differing(resumed, expected) == []
