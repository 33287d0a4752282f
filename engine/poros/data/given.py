"""Data handed over in Python: data sets of text or of tokens, and loaders of ready batches."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from poros.data.batches import Batch
from poros.data.samples import IGNORED, DataReport, Prepared, Sample, digest_of
from poros.errors import PorosDataError
from poros.rows import Row

# B rows of a batch, T tokens of a row.

_TAKEN = ("input_ids", "attention_mask", "position_ids", "labels")


def name_of(data: object) -> str:
    """What a run calls data that have no name of their own.

    Raises:
        PorosDataError: It is neither a name, nor a data set, nor a DataLoader.
    """
    if isinstance(data, str):
        return data
    kind = type(data).__name__
    if isinstance(data, DataLoader):
        return f"python:{kind}"
    if isinstance(data, Mapping):
        raise PorosDataError(
            f"a {kind} holds several splits",
            where=", ".join(map(str, data))[:80],
            remediation="give one of them, as data['train']",
        )
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise PorosDataError(
            f"a {kind} is no data to train on",
            remediation="give a name, a path, a data set with a length, or a DataLoader",
        )
    return f"python:{kind}"


def rows_of(data: Any) -> list[Row]:
    """The rows of a data set; a row's line is its number."""
    source = name_of(data)
    rows = []
    for number in range(len(data)):
        row = data[number]
        if not isinstance(row, Mapping):
            raise PorosDataError(
                f"a row is a {type(row).__name__}, not a dict",
                where=f"{source}, row {number + 1}",
                remediation="give rows such as {'prompt': ..., 'completion': ...}",
            )
        rows.append(Row(number + 1, {k: v for k, v in row.items() if v is not None}, source))
    return rows


def are_tokens(rows: Sequence[Row]) -> bool:
    """Whether somebody has tokenised the rows already."""
    return bool(rows) and "input_ids" in rows[0].fields


def samples_of(
    rows: Sequence[Row], *, split: str, max_seq_length: int, vocab_size: int, pad: tuple[int, str]
) -> Prepared:
    """Samples of rows that hold `input_ids`, and `labels` and `attention_mask` if they like.

    Raises:
        PorosDataError: A row has no tokens, too many, or other ones than the model.
    """
    source = rows[0].source
    samples: list[Sample] = []
    for row in rows:
        where = f"{source}, row {row.line}"
        if "input_ids" not in row.fields:
            raise PorosDataError("a row without input_ids", where=where, remediation="leave it out")
        sample = _sample(row.fields, len(samples), row.line, where)
        if len(sample) > max_seq_length:
            raise _too_long(len(sample), max_seq_length, where)
        _check_ids(sample.input_ids, vocab_size, where)
        if sample.num_label_tokens:
            samples.append(sample)
    report = _report(source, split, "tokens", len(rows), samples, pad)
    report.dropped = (
        {"no_labels": [0] * (len(rows) - len(samples))} if len(rows) > len(samples) else {}
    )
    report.check_usable()
    return Prepared(samples, report, digest_of(samples))


class GivenBatches:
    """The micro-batches of a DataLoader, as it makes them and in its order.

    All that the run takes are drawn before it begins, from a seed, so that a resumed run draws the
    same; the process's own random numbers stay where they are.

    Args:
        loader: Its batches are dicts with `input_ids`, and `labels`, `attention_mask` and
            `position_ids` if they like.
        num_passes: How often the loader is gone through.
        max_steps: No more optimizer steps than that, through as many passes as it takes.
        accumulation: Micro-batches of a step.
        seed: The loader's random numbers start from it.
        max_seq_length: Most tokens of a row.
        vocab_size: Rows of the model's embedding.

    Raises:
        PorosDataError: A batch can't be trained on.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        *,
        num_passes: int,
        max_steps: int | None,
        accumulation: int,
        seed: int,
        max_seq_length: int,
        vocab_size: int,
    ) -> None:
        """Draw."""
        self._steps: list[list[list[Batch]]] = []
        check = _BatchReader(max_seq_length, vocab_size)
        missing = max_steps
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            while missing if max_steps else len(self._steps) < num_passes:
                batches = map(check.read, loader)
                wanted = None if missing is None else missing * accumulation
                drawn = list(islice(batches, wanted))
                if not drawn:
                    raise PorosDataError("the DataLoader has no batches", where=name_of(loader))
                steps = [drawn[k : k + accumulation] for k in range(0, len(drawn), accumulation)]
                self._steps.append(steps)
                missing = None if missing is None else missing - len(steps)
        self._epoch = self._position = 0

    @property
    def steps_per_epoch(self) -> int:
        """Steps of a pass through the loader."""
        return len(self._steps[0])

    @property
    def num_total_steps(self) -> int:
        """Steps that were drawn."""
        return sum(map(len, self._steps))

    @property
    def most_tokens(self) -> int:
        """Tokens of the largest micro-batch, padding included."""
        return max(batch.input_ids_BT.numel() for batch in self.all())

    @property
    def cursor(self) -> dict[str, int]:
        """Where the next step begins: the pass, and how many of its steps are done."""
        return {"epoch": self._epoch, "position": self._position}

    def all(self) -> Iterator[Batch]:
        """Every micro-batch, in order."""
        return (batch for steps in self._steps for step in steps for batch in step)

    def seek(self, cursor: dict[str, int]) -> None:
        """Go to where a cursor was taken.

        Raises:
            ValueError: No step begins there.
        """
        epoch, position = cursor["epoch"], cursor["position"]
        at_end = (epoch, position) == (len(self._steps), 0)
        if not at_end and not (
            0 <= epoch < len(self._steps) and 0 <= position < len(self._steps[epoch])
        ):
            raise ValueError(f"no step begins at {cursor}")
        self._epoch, self._position = epoch, position

    def next_step(self) -> list[Batch]:
        """The micro-batches of the next step, and one step on."""
        step = self._steps[self._epoch][self._position]
        self._position += 1
        if self._position == len(self._steps[self._epoch]):
            self._epoch, self._position = self._epoch + 1, 0
        return step

    def prepared(self, *, split: str, pad: tuple[int, str]) -> Prepared:
        """The account of them, and a digest over all tokens, labels and masks."""
        digest: list[Sample] = []
        samples: list[Sample] = []
        for batch in self.all():
            tensors = (
                batch.input_ids_BT,
                batch.labels_BT,
                batch.attention_mask,
                batch.position_ids_BT,
            )
            for tensor in tensors:
                numbers = [] if tensor is None else tensor.flatten().tolist()
                digest.append(Sample(0, array("i", numbers), array("i"), line=0))
            samples += [
                _sample({"input_ids": ids, "labels": labels}, len(samples), 0, "")
                for ids, labels in zip(batch.input_ids_BT, batch.labels_BT, strict=True)
            ]
        report = _report("python:DataLoader", split, "batches", len(samples), samples, pad)
        return Prepared([], report, digest_of(digest))


def held_out_of(
    loader: DataLoader[Any],
    *,
    split: str,
    max_seq_length: int,
    vocab_size: int,
    pad: tuple[int, str],
) -> Prepared:
    """The rows of a loader's batches as samples, for evaluation; padding is left out.

    Raises:
        PorosDataError: As for `GivenBatches`.
    """
    reader = _BatchReader(max_seq_length, vocab_size)
    samples: list[Sample] = []
    with torch.random.fork_rng(devices=[]):
        for batch in map(reader.read, loader):
            masks = batch.attention_mask
            for index in range(len(batch.input_ids_BT)):
                values = {"input_ids": batch.input_ids_BT[index], "labels": batch.labels_BT[index]}
                if masks is not None:
                    values["attention_mask"] = masks[index]
                sample = _sample(values, len(samples), len(samples) + 1, name_of(loader))
                if sample.num_label_tokens:
                    samples.append(sample)
    report = _report(name_of(loader), split, "batches", len(samples), samples, pad)
    report.check_usable()
    return Prepared(samples, report, digest_of(samples))


class _BatchReader:
    """Makes a loader's batches ours, and tells what is wrong with one by its number."""

    def __init__(self, max_seq_length: int, vocab_size: int) -> None:
        self._max_seq_length, self._vocab_size, self._number = max_seq_length, vocab_size, 0

    def read(self, given: Any) -> Batch:
        self._number += 1
        where = f"python:DataLoader, batch {self._number}"
        ids_BT, labels_BT, mask_BT, positions_BT = _tensors(given, where)
        if ids_BT.shape[1] > self._max_seq_length:
            raise _too_long(ids_BT.shape[1], self._max_seq_length, where)
        _check_ids(ids_BT.flatten().tolist(), self._vocab_size, where)
        num_padding = 0 if mask_BT is None else int((mask_BT == 0).sum())
        batch = Batch(
            ids_BT, labels_BT, mask_BT, positions_BT, tuple(range(len(ids_BT))), num_padding
        )
        if batch.num_label_tokens == 0:
            raise PorosDataError(
                "a batch has nothing to learn",
                where=where,
                remediation="leave out rows whose labels are all -100",
            )
        return batch


def _tensors(given: Any, where: str) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    if not isinstance(given, Mapping) or not isinstance(given.get("input_ids"), Tensor):
        raise PorosDataError(
            "a batch holds no tensor input_ids",
            where=where,
            remediation="give the DataLoader a collate_fn that tokenises, or give the data set"
            " itself: Poros tokenises it",
        )
    if unknown := sorted(set(map(str, given)) - set(_TAKEN)):
        raise PorosDataError(
            f"a batch has {', '.join(unknown)}, which the training takes nowhere",
            where=where,
            remediation=f"leave them out; taken are {', '.join(_TAKEN)}",
        )
    ids_BT = given["input_ids"].long().cpu()
    mask_BT, positions_BT = given.get("attention_mask"), given.get("position_ids")
    labels_BT = given.get("labels")
    if labels_BT is None:
        labels_BT = ids_BT if mask_BT is None else ids_BT.masked_fill(mask_BT.cpu() == 0, IGNORED)
    found = {"labels": labels_BT, "attention_mask": mask_BT, "position_ids": positions_BT}
    for name, tensor in found.items():
        if tensor is not None and (ids_BT.dim() != 2 or tensor.shape != ids_BT.shape):
            raise PorosDataError(
                f"{name} has shape {tuple(tensor.shape)}, input_ids {tuple(ids_BT.shape)}",
                where=where,
                remediation="give both as (rows, tokens)",
            )
    return ids_BT, labels_BT.long().cpu(), _on_host(mask_BT), _on_host(positions_BT)


def _on_host(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.long().cpu()


def _sample(values: Mapping[str, Any], number: int, line: int, where: str) -> Sample:
    ids = [int(token) for token in values["input_ids"]]
    labels = [int(label) for label in values.get("labels", ids)]
    mask = [int(bit) for bit in values.get("attention_mask", [1] * len(ids))]
    if not len(ids) == len(labels) == len(mask) or not ids:
        raise PorosDataError(
            f"{len(ids)} input_ids, {len(labels)} labels, {len(mask)} of attention_mask",
            where=where,
            remediation="give a label and a mask for each token",
        )
    ids = [token for token, bit in zip(ids, mask, strict=True) if bit]
    labels = [label for label, bit in zip(labels, mask, strict=True) if bit]
    labels[:1] = [IGNORED] * len(labels[:1])
    return Sample(number, array("i", ids), array("i", labels), line)


def _report(
    source: str,
    split: str,
    shape: str,
    num_rows: int,
    samples: Sequence[Sample],
    pad: tuple[int, str],
) -> DataReport:
    return DataReport(
        source,
        split,
        shape=shape,
        num_rows=num_rows,
        num_samples=len(samples),
        num_label_tokens=sum(sample.num_label_tokens for sample in samples),
        max_tokens=max(map(len, samples), default=0),
        pad_token_id=pad[0],
        pad_policy=pad[1],
    )


def _check_ids(ids: Sequence[int], vocab_size: int, where: str) -> None:
    wrong = next((token for token in ids if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise PorosDataError(
            f"token {wrong} is not among the model's {vocab_size}",
            where=where,
            remediation="tokenise with the model's own tokenizer",
        )


def _too_long(num_tokens: int, max_seq_length: int, where: str) -> PorosDataError:
    return PorosDataError(
        f"{num_tokens} tokens, more than max_seq_length {max_seq_length}",
        where=where,
        remediation=f"set max_seq_length (seq_len=) to {num_tokens}, or cut the rows",
    )
