"""What a run would make of its data: tokenised without a run; no weight is fetched or read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from poros.config import PorosConfig
from poros.data.samples import Prepared
from poros.events import Event, Warned
from poros.loading.hub import NO_WEIGHTS, resolve_model
from poros.model_config import read_config, text_config
from poros.training.batching import num_total_steps, sample_batches, warmup_warning
from poros.training.inputs import (
    DataReader,
    accepted_architecture,
    choose_device,
    read_tokenizer,
    refuse_settings,
)


def read_data(config: PorosConfig, show: Callable[[dict[str, Any]], None]) -> int:
    """Tokenise a run's data as it would, and show the account of them.

    Args:
        config: The run's settings.
        show: Takes the record: device, steps, counts of each split, warnings.

    Returns:
        0.

    Raises:
        PorosError: As the run's.
    """
    warnings: list[str] = []

    def hear(event: Event) -> None:
        if isinstance(event, Warned):
            warnings.append(event.message)

    name = config.model_name_or_path
    device = choose_device(config.device)
    folder = resolve_model(name, hear, patterns=NO_WEIGHTS)
    model_config, _ = text_config(read_config(folder), where=name)
    spec = accepted_architecture(config, model_config, where=name, emit=hear)
    refuse_settings(config, model_config, spec)
    reader = DataReader(config, read_tokenizer(folder), model_config["vocab_size"], hear)
    assert config.dataset is not None
    train = reader.samples(config.dataset, None, "train")
    record: dict[str, Any] = {"train": _account(train)}
    if config.eval_dataset:
        record["eval"] = _account(reader.samples(config.eval_dataset, None, "validation"))
    total_steps = num_total_steps(config, sample_batches(config, train))
    if (warning := warmup_warning(config, total_steps)) is not None:
        hear(warning)
    show(record | {"device": str(device), "total_steps": total_steps, "warnings": warnings})
    return 0


def _account(prepared: Prepared) -> dict[str, Any]:
    report, samples = prepared.report, prepared.samples
    return {
        "source": report.source,
        "shape": report.shape,
        "num_rows": report.num_rows,
        "num_samples": report.num_samples,
        "num_truncated": report.num_truncated,
        "num_dropped": sum(report.drop_reasons.values()),
        "drop_reasons": report.drop_reasons,
        "longest": max(map(len, samples), default=0),
        "num_tokens": sum(map(len, samples)),
        "num_label_tokens": report.num_label_tokens,
    }
