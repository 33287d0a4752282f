"""From texts to token ids and labels: what is learned, where a text begins and where it ends."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from poros.data.chat_template import Rendered
from poros.data.samples import IGNORED
from poros.data.template_habits import markers_of
from poros.errors import PorosModelError
from poros.rows import Row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Spans = Sequence[tuple[int, int]]


class Encoder:
    """Makes texts into token ids and labels.

    Args:
        tokenizer: A fast tokenizer.
        add_special_tokens: False for a template's texts: it writes its special tokens itself.
        vocab_size: Rows of the model's embedding.

    Raises:
        PorosModelError: The tokenizer can't tell where in the text its tokens are from.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *, add_special_tokens: bool, vocab_size: int
    ) -> None:
        """Look up the tokenizer's special tokens once."""
        if not tokenizer.is_fast:
            raise PorosModelError(
                "the tokenizer can't tell which characters a token is from (not a fast tokenizer)",
                where=type(tokenizer).__name__,
                remediation="use a model with a tokenizer.json",
            )
        self._tokenizer = tokenizer
        self._add_special_tokens = add_special_tokens
        self._vocab_size = vocab_size
        self._special_ids = frozenset(tokenizer.all_special_ids)
        self._marker_ids = frozenset(markers_of(tokenizer))

    def encode(
        self, texts: Sequence[Rendered], rows: Sequence[Row]
    ) -> Iterator[tuple[array[int], array[int]]]:
        """Ids and labels of each text; both empty where a text is nothing but special tokens.

        Raises:
            PorosModelError: A token has no row in the model's embedding.
        """
        encoding = self._tokenizer(
            [text.text for text in texts],
            add_special_tokens=self._add_special_tokens,
            padding=False,
            truncation=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        for i, (text, row) in enumerate(zip(texts, rows, strict=True)):
            input_ids = array("i", encoding["input_ids"][i])
            self._check_ids(input_ids, row)
            if self._special_ids.issuperset(input_ids):
                yield array("i"), array("i")
                continue
            labels = self._labels(text, input_ids, encoding["offset_mapping"][i])
            yield self._with_ends(text, input_ids, labels)

    def _check_ids(self, input_ids: array[int], row: Row) -> None:
        greatest = max(input_ids, default=0)
        if greatest < self._vocab_size:
            return
        token = self._tokenizer.convert_ids_to_tokens(greatest)
        raise PorosModelError(
            f"the tokenizer makes token {greatest} ({token!r}), "
            f"the model has embeddings for {self._vocab_size} tokens only",
            where=row.where,
            remediation="use the tokenizer that belongs to the model; embeddings are never resized",
        )

    def _labels(self, text: Rendered, input_ids: array[int], offsets: Spans) -> array[int]:
        if text.trained is None:
            return array("i", input_ids)
        labels = array("i", [IGNORED]) * len(input_ids)
        for start, end in text.trained:
            # A token of prompt and answer together is not learned: no prompt ends inside a token.
            inside = [i for i, (s, e) in enumerate(offsets) if start <= s < end and e <= end]
            for i in self._up_to_turn_end(text.text, inside, input_ids, offsets, end):
                labels[i] = input_ids[i]
        return labels

    def _up_to_turn_end(
        self, text: str, inside: list[int], input_ids: array[int], offsets: Spans, end: int
    ) -> list[int]:
        """Without the white space after the token that ends the turn: the template's, not said."""
        markers = [at for at, i in enumerate(inside) if input_ids[i] in self._marker_ids]
        if markers and not text[offsets[inside[markers[-1]]][1] : end].strip():
            return inside[: markers[-1] + 1]
        return inside

    def _with_ends(
        self, text: Rendered, input_ids: array[int], labels: array[int]
    ) -> tuple[array[int], array[int]]:
        """One BOS at most, and an end that the model can learn to stop at."""
        bos, eos = self._tokenizer.bos_token_id, self._tokenizer.eos_token_id
        if bos is not None and input_ids[:2] == array("i", [bos, bos]):
            input_ids, labels = input_ids[1:], labels[1:]
        ends = text.is_closed or input_ids[-1] == eos
        if eos is not None and text.ends_with_answer and not ends:
            input_ids.append(eos)
            labels.append(eos)
        labels[0] = IGNORED
        return input_ids, labels
