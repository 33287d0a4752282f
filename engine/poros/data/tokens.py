"""From rows to token ids and labels; no row is lost without a count, a reason and its line."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Literal

from poros.data.chat_template import ChatTemplate, Rendered, UnrenderableError
from poros.data.encoder import Encoder
from poros.data.samples import DataReport, Prepared, Sample, digest_of
from poros.errors import PorosDataError
from poros.row_shapes import RowShape, detect_shape, to_messages, to_text
from poros.row_tools import read_tools
from poros.rows import BadLines, Row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TrainOn = Literal["completions", "everything"]
Overlong = Literal["truncate", "drop", "error"]

_TEXTS_PER_CALL = 256


def tokenize_rows(
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_seq_length: int,
    train_on: TrainOn = "completions",
    overlong: Overlong = "truncate",
    vocab_size: int | None = None,
    bad_lines: BadLines | None = None,
    source: str = "",
    split: str = "train",
    progress: Callable[[int], None] = lambda done: None,
) -> Prepared:
    """Samples of the rows, in their order.

    Args:
        rows: As read.
        tokenizer: A fast tokenizer, whose chat template renders conversations.
        max_seq_length: Most tokens of a sample.
        train_on: Whether the model learns the answers only, or every token.
        overlong: What becomes of longer samples.
        vocab_size: Rows of the model's embedding; None takes the tokenizer's length.
        bad_lines: Takes rows that drift from the shape; None refuses them.
        source: Name of the data, for the report.
        split: Name of the split, for the report.
        progress: Called with the number of rows done.

    Raises:
        PorosDataError: A row is wrong, or none gives a sample.
        PorosModelError: The tokenizer or its template can't serve.
    """
    bad_lines = BadLines() if bad_lines is None else bad_lines
    report = DataReport(source, split, num_rows=len(rows) + len(bad_lines.found))
    vocab_size = len(tokenizer) if vocab_size is None else vocab_size
    report.pad_token_id, report.pad_policy = choose_pad_token(tokenizer, vocab_size)
    samples: list[Sample] = []
    if rows:
        shape = detect_shape(rows)
        report.shape = shape.name
        renderer = _Renderer(tokenizer, shape, train_on, bad_lines, report)
        encoder = Encoder(
            tokenizer, add_special_tokens=not shape.is_conversation, vocab_size=vocab_size
        )
        stops = _stop_ids(tokenizer, renderer.template)
        keeper = _Keeper(samples, report, max_seq_length, overlong, stops)
        texts = renderer.texts_of(rows, progress)
        while chunk := list(islice(texts, _TEXTS_PER_CALL)):
            encoded = encoder.encode([text for _, text in chunk], [row for row, _ in chunk])
            for (row, _), (input_ids, labels) in zip(chunk, encoded, strict=True):
                keeper.take(row, input_ids, labels)
    report.bad_lines = [f"{error.where}: {error.message}" for error in bad_lines.found]
    report.check_usable()
    return Prepared(samples, report, digest_of(samples))


def choose_pad_token(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> tuple[int, str]:
    """The id that fills short rows, and where it is from; embeddings are never resized for it.

    Padding is masked and never trained, so that any id serves; the choice is fixed and recorded.
    """
    for name in ("pad", "eos"):
        token_id = getattr(tokenizer, f"{name}_token_id")
        if token_id is not None and token_id < vocab_size:
            return token_id, f"{name}_token"
    return 0, "token 0"


def _stop_ids(tokenizer: PreTrainedTokenizerBase, template: ChatTemplate | None) -> frozenset[int]:
    """The tokens that tell a model to stop."""
    stops = template.stops if template is not None else ()
    ids = [tokenizer.eos_token_id, *map(tokenizer.convert_tokens_to_ids, stops)]
    return frozenset(found for found in ids if found is not None)


@dataclass
class _Renderer:
    """Makes rows into texts, with the characters to be learned."""

    tokenizer: PreTrainedTokenizerBase
    shape: RowShape
    train_on: TrainOn
    bad_lines: BadLines
    report: DataReport

    def texts_of(
        self, rows: Sequence[Row], progress: Callable[[int], None]
    ) -> Iterator[tuple[Row, Rendered]]:
        template = self.template
        for done, row in enumerate(rows, start=1):
            try:
                rendered = self._plain(row) if template is None else self._turns(row, template)
            except PorosDataError as error:
                self.bad_lines.refuse(error)
                rendered = []
            yield from ((row, text) for text in rendered)
            progress(done)

    @cached_property
    def template(self) -> ChatTemplate | None:
        """The tokenizer's, checked; None: the rows are no conversations."""
        if not self.shape.is_conversation:
            return None
        template = ChatTemplate(self.tokenizer)
        self.report.template_sha256 = template.sha256
        if self.train_on == "completions":
            template.check_answers()
            self.report.prompt_surplus = template.prompt_surplus
        return template

    def _plain(self, row: Row) -> list[Rendered]:
        text = to_text(row, self.shape)
        if not text.strip():
            self.report.drop("empty", row.line)
            return []
        return [Rendered(text, None, ends_with_answer=True)]

    def _turns(self, row: Row, template: ChatTemplate) -> list[Rendered]:
        messages = to_messages(row, self.shape)
        learned = [m for m in messages if m["role"] == "assistant" or self.train_on == "everything"]
        if not any(m["content"].strip() or "tool_calls" in m for m in learned):
            self.report.drop("no_labels" if messages and not learned else "empty", row.line)
            return []
        everything = self.train_on == "everything"
        render = template.render_everything if everything else template.render_answers
        try:
            rendered = render(messages, read_tools(row))
        except UnrenderableError as error:
            raise PorosDataError(str(error), where=row.where, remediation=error.remedy) from error
        self.report.num_split_rows += len(rendered) > 1
        return rendered


@dataclass(slots=True)
class _Keeper:
    """Applies the length policy and keeps the samples that have something to learn."""

    samples: list[Sample]
    report: DataReport
    max_seq_length: int
    overlong: Overlong
    stops: frozenset[int]

    def take(self, row: Row, input_ids: array[int], labels: array[int]) -> None:
        """Keep the sample, cut it, or note why it is dropped."""
        num_tokens = len(input_ids)
        self.report.max_tokens = max(self.report.max_tokens, num_tokens)
        if num_tokens > self.max_seq_length:
            self.report.overlong.append(num_tokens)
            if self.overlong == "error":
                raise PorosDataError(
                    f"{num_tokens} tokens, more than max_seq_length {self.max_seq_length}",
                    where=row.where,
                    remediation="raise max_seq_length, or set overlong: truncate or drop",
                )
            if self.overlong == "drop":
                self.report.drop("too_long", row.line)
                return
        sample = Sample(
            sample_id=len(self.samples),
            input_ids=input_ids[: self.max_seq_length],
            labels=labels[: self.max_seq_length],
            line=row.line,
        )
        if not num_tokens:
            self.report.drop("empty", row.line)
        elif not sample.num_label_tokens:
            self.report.drop("no_labels", row.line)
        else:
            self.samples.append(sample)
            self.report.num_truncated += num_tokens > self.max_seq_length
            self.report.num_samples += 1
            self.report.num_label_tokens += sample.num_label_tokens
            self.report.num_stops += any(map(sample.labels.count, self.stops))
