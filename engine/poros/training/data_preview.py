"""`poros data`: what training would make of a data set, told before a model is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from poros.data.load import load_data
from poros.data.samples import IGNORED, Sample
from poros.errors import PorosConfigError
from poros.events import Event, Warned
from poros.loading.hub import NO_WEIGHTS, resolve_model
from poros.model_config import read_config, text_config
from poros.training.inputs import read_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from poros.data.tokens import Overlong, TrainOn
    from poros.rows import OnBadLine


def preview(
    data: str,
    model: str,
    show: Callable[[dict[str, Any]], None],
    *,
    split: str,
    max_seq_length: int,
    train_on: TrainOn,
    overlong: Overlong,
    on_bad_line: OnBadLine,
    line: int | None,
    num_shown: int = 1,
) -> int:
    """Tokenise the data as a run would, and show what came of it; no weight is fetched or read.

    Args:
        data: A file, a data set of the Hub, or ``synthetic[:n]``.
        model: Folder, or name on the Hub, whose tokenizer and template are used.
        show: Takes the record: shape, counts, lengths, duplicates, and one sample in pieces.
        split: Of a data set of the Hub.
        max_seq_length: Most tokens of a sample.
        train_on: As the config's.
        overlong: As the config's.
        on_bad_line: As the config's.
        line: Row of the sample that is shown; None: the first sample's.
        num_shown: Samples that are in the record beside it, from the first on.

    Returns:
        0.

    Raises:
        PorosError: As a run's, for the same data and model.
    """
    warnings: list[str] = []

    def hear(event: Event) -> None:
        if isinstance(event, Warned):
            warnings.append(event.message)

    folder = resolve_model(model, hear, patterns=NO_WEIGHTS)
    config, _ = text_config(read_config(folder), where=model)
    tokenizer = read_tokenizer(folder)
    prepared = load_data(
        data,
        tokenizer,
        split=split,
        max_seq_length=max_seq_length,
        train_on=train_on,
        overlong=overlong,
        on_bad_line=on_bad_line,
        vocab_size=config["vocab_size"],
        emit=hear,
    )
    report, samples = prepared.report, prepared.samples
    sample = _sample_of(samples, line, data)
    show(
        {
            "data": data,
            "model": model,
            "split": split,
            "shape": report.shape,
            "max_seq_length": max_seq_length,
            "num_rows": report.num_rows,
            "num_samples": report.num_samples,
            "num_truncated": report.num_truncated,
            "num_split_rows": report.num_split_rows,
            "dropped": report.drop_reasons,
            "dropped_lines": report.dropped,
            "bad_lines": report.bad_lines,
            "duplicates": duplicates(samples),
            "lengths": sorted(map(len, samples)),
            "longest": report.max_tokens,
            "overlong": sorted(report.overlong),
            "num_tokens": sum(map(len, samples)),
            "num_label_tokens": report.num_label_tokens,
            "num_stops": report.num_stops,
            "digest": prepared.digest,
            "warnings": warnings,
            "sample": _shown(sample, tokenizer),
            "samples": [_shown(one, tokenizer) for one in samples[:num_shown]],
        }
    )
    return 0


def duplicates(samples: Sequence[Sample]) -> list[tuple[int, int]]:
    """Samples with tokens and labels of an earlier one: the row of each, and the earlier one's."""
    seen: dict[tuple[bytes, bytes], int] = {}
    found = []
    for sample in samples:
        key = (sample.input_ids.tobytes(), sample.labels.tobytes())
        if key in seen:
            found.append((sample.line, seen[key]))
        else:
            seen[key] = sample.line
    return found


def pieces(sample: Sample, tokenizer: PreTrainedTokenizerBase) -> list[tuple[str, bool]]:
    """A sample's text, special tokens too, cut where training begins or ends; True: trained."""
    tokens = zip(sample.input_ids, sample.labels, strict=True)
    return [
        (
            str(
                tokenizer.decode(
                    [token for token, _ in run],
                    skip_special_tokens=False,
                    clean_up_tokenization_spaces=False,
                )
            ),
            is_trained,
        )
        for is_trained, run in groupby(tokens, key=lambda pair: pair[1] != IGNORED)
    ]


def _shown(sample: Sample, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    return {
        "line": sample.line,
        "num_tokens": len(sample),
        "pieces": pieces(sample, tokenizer),
    }


def _sample_of(samples: Sequence[Sample], line: int | None, data: str) -> Sample:
    if line is None:
        return samples[0]
    for sample in samples:
        if sample.line == line:
            return sample
    raise PorosConfigError(
        f"row {line} is no sample",
        where=data,
        remediation=f"--line takes one of {samples[0].line} to {samples[-1].line} that was kept",
    )
