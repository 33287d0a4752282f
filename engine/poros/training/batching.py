"""A run's batches, and how many steps they are."""

from __future__ import annotations

from poros.config import PorosConfig
from poros.data.batches import StepBatches
from poros.data.given import GivenBatches
from poros.data.samples import Prepared
from poros.events import Warned
from poros.training.inputs import Inputs


def make_batches(config: PorosConfig, inputs: Inputs) -> StepBatches | GivenBatches:
    """The training data in their order."""
    return inputs.batches if inputs.batches is not None else sample_batches(config, inputs.train)


def sample_batches(config: PorosConfig, train: Prepared) -> StepBatches:
    """The batches of samples, in the run's order."""
    return StepBatches(
        train.samples,
        batch_size=config.per_device_batch_size,
        accumulation=config.gradient_accumulation_steps,
        seed=config.seed,
        packing=config.packing,
        max_seq_length=config.max_seq_length,
        pad_token_id=train.report.pad_token_id,
    )


def num_total_steps(config: PorosConfig, batches: StepBatches | GivenBatches) -> int:
    """Optimizer steps of the whole run."""
    if isinstance(batches, GivenBatches):
        return batches.num_total_steps
    return config.max_steps or config.num_epochs * batches.steps_per_epoch


def warmup_warning(config: PorosConfig, total_steps: int) -> Warned | None:
    """That the learning rate would rise to the end, if it would."""
    if config.warmup_steps < total_steps:
        return None
    return Warned(
        code="W-warmup",
        message=f"warmup_steps {config.warmup_steps} is not less than the run's"
        f" {total_steps} steps: the learning rate never gets to its height; set"
        f" warmup_steps: {total_steps // 10}",
    )
