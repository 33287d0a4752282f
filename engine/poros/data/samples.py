"""Tokenised samples, and the account of what became of every row."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from poros.errors import PorosDataError
from poros.events import DataPrepared

IGNORED = -100
"""The label of a token that is not trained; the models' losses leave it out."""

_LINES_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Sample:
    """Tokens and labels of one example; label i belongs to token i (the model shifts them).

    Args:
        sample_id: Its number among the samples.
        input_ids: Token ids.
        labels: The same ids, or `IGNORED`; the first is always ignored, since nothing precedes it.
        line: Line or row of the source that it was made from.
    """

    sample_id: int
    input_ids: array[int]
    labels: array[int]
    line: int

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self.input_ids)

    @property
    def num_label_tokens(self) -> int:
        """Number of tokens that are trained."""
        return len(self.labels) - self.labels.count(IGNORED)


@dataclass(slots=True)
class DataReport:
    """What became of the rows; every row is a sample, a part of one, or has a reason here.

    Args:
        source: The file or data set.
        split: ``train``, ``validation`` or the like.
        shape: The rows' shape.
        num_rows: Rows found, bad lines included.
        num_samples: Samples made.
        num_truncated: Samples that were cut to the greatest length.
        num_split_rows: Conversations that became one sample an answer.
        num_label_tokens: Tokens that are trained, over all samples.
        num_stops: Samples that teach the model where to stop: a token that ends a turn or the text
            is trained in them.
        max_tokens: Length of the longest sample before any cut.
        overlong: Lengths of the samples with more than the greatest length, before any cut.
        dropped: Lines of the rows without a sample, by reason.
        bad_lines: One text for each line that was left out as unreadable.
        template_sha256: Hash of the chat template; empty where none was used.
        prompt_surplus: What prompts end with and trained answers lack; see `ChatTemplate`.
        pad_token_id: The id that fills short rows (masked, never trained).
        pad_policy: Where that id is from.
    """

    source: str
    split: str
    shape: str = ""
    num_rows: int = 0
    num_samples: int = 0
    num_truncated: int = 0
    num_split_rows: int = 0
    num_label_tokens: int = 0
    num_stops: int = 0
    max_tokens: int = 0
    overlong: list[int] = field(default_factory=list)
    dropped: dict[str, list[int]] = field(default_factory=dict)
    bad_lines: list[str] = field(default_factory=list)
    template_sha256: str = ""
    prompt_surplus: str = ""
    pad_token_id: int = 0
    pad_policy: str = ""

    def drop(self, reason: str, line: int) -> None:
        """Note a row that gives no sample."""
        self.dropped.setdefault(reason, []).append(line)

    @property
    def drop_reasons(self) -> dict[str, int]:
        """How many rows gave no sample, by reason."""
        counts = {reason: len(lines) for reason, lines in self.dropped.items()}
        return counts | ({"bad_line": len(self.bad_lines)} if self.bad_lines else {})

    def reasons_in_words(self) -> str:
        """Reasons, counts and the first lines of each, in one line."""
        words = []
        for reason, lines in self.dropped.items():
            shown = ", ".join(map(str, lines[:_LINES_SHOWN]))
            more = ", ..." if len(lines) > _LINES_SHOWN else ""
            words.append(f"{reason} {len(lines)} (lines {shown}{more})")
        if self.bad_lines:
            words.append(f"bad_line {len(self.bad_lines)} (first: {self.bad_lines[0]})")
        return "; ".join(words)

    def event(self) -> DataPrepared:
        """The counts as the record that a run reports."""
        return DataPrepared(
            split=self.split,
            shape=self.shape,
            num_rows=self.num_rows,
            num_samples=self.num_samples,
            num_truncated=self.num_truncated,
            num_dropped=sum(self.drop_reasons.values()),
            drop_reasons=self.drop_reasons,
            max_tokens=self.max_tokens,
            num_label_tokens=self.num_label_tokens,
        )

    def check_usable(self) -> None:
        """Refuse data that gives nothing to train on.

        Raises:
            PorosDataError: There is no sample.
        """
        if self.num_samples:
            return
        reasons = self.reasons_in_words() or "the source is empty"
        raise PorosDataError(
            f"0 usable samples of {self.num_rows} rows (reasons: {reasons})",
            where=self.source,
            remediation=_remedy(self.drop_reasons),
        )


@dataclass(frozen=True, slots=True)
class Prepared:
    """Samples ready for batches.

    Args:
        samples: In the order of their rows.
        report: What became of the rows.
        digest: SHA-256 over all tokens and labels; equal digests mean equal training data.
    """

    samples: list[Sample]
    report: DataReport
    digest: str


def digest_of(samples: Sequence[Sample]) -> str:
    """SHA-256 over lengths, token ids and labels, as little-endian 32-bit numbers."""
    sha = hashlib.sha256()
    for sample in samples:
        for numbers in (array("i", [len(sample)]), sample.input_ids, sample.labels):
            sha.update(_little_endian(numbers))
    return sha.hexdigest()


def _little_endian(numbers: array[int]) -> bytes:
    if array("i", [1]).tobytes()[0] == 1:
        return numbers.tobytes()
    swapped = array("i", numbers)
    swapped.byteswap()
    return swapped.tobytes()


def _remedy(drop_reasons: dict[str, int]) -> str:
    remedies = {
        "no_labels": "raise max_seq_length, check the role names, or set train_on: everything",
        "too_long": "raise max_seq_length, or set overlong: truncate",
        "bad_line": "mend the bad lines",
    }
    commonest = max(drop_reasons, key=drop_reasons.__getitem__, default="")
    return remedies.get(commonest, "give rows with text in them")
