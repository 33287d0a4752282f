"""The front door of data: from a name to samples, with a report."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from poros.data.given import are_tokens, rows_of, samples_of
from poros.data.order import below, random_words
from poros.data.samples import IGNORED, DataReport, Prepared, Sample, digest_of
from poros.data.sources import read_source, synthetic_samples
from poros.data.tokens import Overlong, TrainOn, choose_pad_token, tokenize_rows
from poros.errors import PorosDataError
from poros.events import Event, PhaseFinished, PhaseProgressed, PhaseStarted, Warned
from poros.rows import BadLines, OnBadLine

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PHASE = "tokenise"

_ROWS_PER_EVENT = 1000


def load_data(
    spec: str,
    tokenizer: PreTrainedTokenizerBase,
    *,
    split: str,
    max_seq_length: int,
    train_on: TrainOn = "completions",
    overlong: Overlong = "truncate",
    on_bad_line: OnBadLine = "error",
    vocab_size: int,
    emit: Callable[[Event], None],
    given: object = None,
) -> Prepared:
    """Samples of a file, of a data set of the Hub, or of ``synthetic[:n]``.

    Emits the phase's start, progress and end, one `DataPrepared`, and a warning for every kind of
    loss. The same arguments and bytes give the same samples and the same digest.

    Args:
        spec: A path, a name on the Hub, or ``synthetic[:n]``.
        tokenizer: The model's own.
        split: Split of a data set; for a file, the word that reports use.
        max_seq_length: Most tokens of a sample.
        train_on: Whether the model learns the answers only, or every token.
        overlong: What becomes of longer samples.
        on_bad_line: Whether a bad line is an error or is left out.
        vocab_size: Rows of the model's embedding.
        emit: Takes the events.
        given: A data set in place of what ``spec`` names, then only its name.

    Raises:
        PorosConfigError: ``synthetic:`` is followed by no count.
        PorosDataError: The data can't be read or holds nothing to train on.
        PorosModelError: The tokenizer or its chat template can't serve.
        PorosHubError: A data set of the Hub can't be had.
    """
    started_s = time.monotonic()
    emit(PhaseStarted(phase=PHASE))
    rows = None if given is None else rows_of(given)
    num_synthetic = synthetic_samples(spec) if rows is None else None
    if num_synthetic is not None:
        pad = choose_pad_token(tokenizer, vocab_size)
        prepared = synthesize(num_synthetic, max_seq_length, vocab_size, split=split, pad=pad)
    elif rows is not None and are_tokens(rows):
        pad = choose_pad_token(tokenizer, vocab_size)
        prepared = samples_of(
            rows, split=split, max_seq_length=max_seq_length, vocab_size=vocab_size, pad=pad
        )
    else:
        bad_lines = BadLines(on_bad_line)
        if rows is None:
            rows = read_source(spec, split=split, bad_lines=bad_lines)
        prepared = tokenize_rows(
            rows,
            tokenizer,
            max_seq_length=max_seq_length,
            train_on=train_on,
            overlong=overlong,
            vocab_size=vocab_size,
            bad_lines=bad_lines,
            source=spec,
            split=split,
            progress=_progress(emit, len(rows)),
        )
    emit(prepared.report.event())
    for warning in _warnings(prepared.report):
        emit(warning)
    emit(PhaseFinished(phase=PHASE, duration_s=time.monotonic() - started_s))
    return prepared


def synthesize(
    num_samples: int, max_seq_length: int, vocab_size: int, *, split: str, pad: tuple[int, str]
) -> Prepared:
    """Random tokens of full length, the same at every call; each split has its own.

    Raises:
        PorosDataError: One token leaves nothing to predict.
    """
    if max_seq_length < 2:
        raise PorosDataError(
            "samples of one token have nothing to predict",
            where="synthetic",
            remediation="set max_seq_length to 2 or more",
        )
    samples = []
    for sample_id in range(num_samples):
        words = random_words(int.from_bytes(split.encode(), "little"), sample_id)
        input_ids = array("i", (below(word, vocab_size) for word in islice(words, max_seq_length)))
        labels = array("i", input_ids)
        labels[0] = IGNORED
        samples.append(Sample(sample_id, input_ids, labels, line=sample_id + 1))
    report = DataReport(
        "synthetic",
        split,
        shape="synthetic",
        num_rows=num_samples,
        num_samples=num_samples,
        num_label_tokens=num_samples * (max_seq_length - 1),
        max_tokens=max_seq_length,
        pad_token_id=pad[0],
        pad_policy=pad[1],
    )
    return Prepared(samples, report, digest_of(samples))


def _progress(emit: Callable[[Event], None], num_rows: int) -> Callable[[int], None]:
    def tell(done: int) -> None:
        if done % _ROWS_PER_EVENT == 0 or done == num_rows:
            emit(PhaseProgressed(phase=PHASE, done=done, total=num_rows, unit="rows"))

    return tell


def _warnings(report: DataReport) -> list[Warned]:
    warnings = []
    if report.drop_reasons:
        words = report.reasons_in_words()
        warnings.append(Warned(code="W-data-dropped", message=f"rows left out: {words}"))
    if report.num_truncated:
        words = f"{report.num_truncated} of {report.num_samples} samples were cut"
        longest = f"the longest has {report.max_tokens} tokens"
        warnings.append(Warned(code="W-data-truncated", message=f"{words}; {longest}"))
    if report.num_split_rows:
        words = f"{report.num_split_rows} conversations became one sample an answer"
        why = "the chat template writes earlier answers in another way"
        warnings.append(Warned(code="W-data-split", message=f"{words}: {why}"))
    if report.prompt_surplus:
        words = f"the chat template asks for answers with {report.prompt_surplus!r} at the end"
        why = "and writes given answers without it: they are learned without it"
        warnings.append(Warned(code="W-data-prompt", message=f"{words} {why}"))
    if report.num_samples and not report.num_stops and report.template_sha256:
        words = "no sample teaches the model to stop: it would talk on without an end"
        warnings.append(Warned(code="W-data-endless", message=f"{words}; {_why_endless(report)}"))
    return warnings


def _why_endless(report: DataReport) -> str:
    if report.num_truncated == report.num_samples:
        return "every one is cut before its answer ends: raise max_seq_length"
    return "tokenizer and chat template have no token for the end: take an instruct model's"
