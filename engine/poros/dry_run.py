"""What a run would find, before it begins: its folder, its model, its data; nothing is made.

What needs no torch is here; `training/dry_run.py` tokenises the data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from poros.config import PorosConfig
from poros.errors import PorosArchNotValidatedError, PorosError, escape_control
from poros.home_paths import typed_path
from poros.run_folder import look_at_place, refuse_missing_checkpoint
from poros.starting_runs import refuse_starting

Look = Callable[[PorosConfig], dict[str, Any]]


def looked_at(
    config: PorosConfig, read_data: Look | None
) -> tuple[dict[str, dict[str, Any]], list[PorosError]]:
    """All that can be told of a run, and what stands in its way.

    Args:
        config: The run's settings.
        read_data: Tokenises the data; None: there is no torch for that.
    """
    found: dict[str, dict[str, Any]] = {}
    problems: list[PorosError] = []

    def look(name: str, at: Look) -> bool:
        try:
            found[name] = at(config)
        except PorosError as error:
            problems.append(error)
        return name in found

    look("output", _output)
    look("resume", _resume)
    has_model = look("model", lambda config: _model(config, probes=read_data is not None))
    look("data", read_data if has_model and read_data is not None else _raw_data)
    return found, problems


def lines(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What was looked at, for people."""
    told = []
    if (output := found.get("output")) is not None:
        told.append(f"output: {output['path']}, {output['state']}")
    if (model := found.get("model")) is not None:
        size = f", {model['num_params']:,} parameters" if model["num_params"] else ""
        told.append(
            f"model:  {model['model']}: {model['model_type']}, {model['label']}{size};"
            " config and headers were read, no weight"
        )
    if (data := found.get("data")) is not None:
        told += _data_lines(data)
    return [escape_control(line) for line in told]


def _data_lines(data: Mapping[str, Any]) -> list[str]:
    if "train" not in data:
        rows = f"{data['num_rows']:,} rows, " if data["num_rows"] is not None else ""
        return [f"data:   {data['source']}: {rows}not tokenised ({data['note']})"]
    told = []
    for name, title in (("train", "data:  "), ("eval", "eval:  ")):
        if (part := data.get(name)) is not None:
            told.append(
                f"{title} {part['source']}: {part['shape']}, {part['num_rows']:,} rows,"
                f" {part['num_samples']:,} samples of up to {part['longest']:,} tokens"
                f" ({part['num_truncated']} cut, {part['num_dropped']} left out),"
                f" {part['num_label_tokens']:,} tokens to learn"
            )
    told.append(f"run:    {data['total_steps']:,} steps on {data['device']}")
    return told + [f"warning: {message}" for message in data["warnings"]]


def _output(config: PorosConfig) -> dict[str, Any]:
    path = typed_path(config.output_dir)
    identity = {"model": config.model_name_or_path, "dataset": config.dataset}
    refuse_starting(path)
    state = look_at_place(path, identity=identity, resume=config.resume != "never")
    return {"path": str(path), "state": state}


def _resume(config: PorosConfig) -> dict[str, Any]:
    """Whether a checkpoint is what it should be is known when it is read."""
    refuse_missing_checkpoint(config.resume)
    return {"from": config.resume}


def _model(config: PorosConfig, *, probes: bool) -> dict[str, Any]:
    from poros.check import check_model

    report = check_model(config.model_name_or_path, rank=config.lora_rank)
    # A family that is in no table is looked through by `blockwise_arch_check`, with torch.
    refusals = [
        error
        for error in report.refusals
        if not (probes and isinstance(error, PorosArchNotValidatedError))
    ]
    if refusals:
        raise refusals[0]
    return {
        "model": config.model_name_or_path,
        "model_type": report.model_type,
        "label": report.labels.architecture,
        "num_params": report.sizes.num_params if report.sizes is not None else None,
    }


def _raw_data(config: PorosConfig) -> dict[str, Any]:
    """Rows of a local file; a data set's name and `synthetic` are not looked up."""
    from poros.rows import read_rows, refuse_missing

    assert config.dataset is not None
    refuse_missing(config.dataset)
    if config.eval_dataset:
        refuse_missing(config.eval_dataset)
    path, num_rows = typed_path(config.dataset), None
    if path.is_file() and path.suffix.lower() != ".parquet":
        num_rows = len(read_rows(path, config.on_bad_line))
    note = 'that needs the model and pip install "poros-tui[train]"'
    return {"source": config.dataset, "num_rows": num_rows, "note": note}
