"""The text part of a multimodal checkpoint, as if it were a checkpoint of its own.

Everything behind `open_source` sees an ordinary text model: its config, its names, its bytes. The
tensors of the other parts are never read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from poros.arch_table import Wrapper
from poros.errors import PorosModelError
from poros.loading.byte_source import ByteSource, SafetensorsSource
from poros.model_config import text_config, text_name
from poros.streaming.file_reader import FilePart
from poros.weights_index import TensorHeader, short_list


def open_source(folder: Path, *, name: str | None = None) -> ByteSource:
    """A model folder as a source; of a multimodal model, its text part.

    Args:
        folder: Holds config.json and the weights.
        name: What the user calls the model; the folder, if left out.

    Raises:
        PorosModelError: Config or headers are missing or damaged, or a tensor of the whole
            belongs to no part that is known.
        PorosArchNotValidatedError: The text part is of a family that is not known there.
    """
    whole = SafetensorsSource(folder, name=name)
    _, wrapper = text_config(whole.config, where=whole.name)
    return whole if wrapper is None else TextPart(whole, wrapper)


class RenamedSource:
    """Another source's tensors under other names, and only those that have one.

    Args:
        whole: Where the bytes come from.
        stored: The new name of each tensor, and the one that `whole` knows it by.
    """

    def __init__(self, whole: ByteSource, stored: Mapping[str, str]) -> None:
        """Nothing is read."""
        self.name, self.folder = whole.name, whole.folder
        self.config: dict[str, Any] = whole.config
        self._whole, self._stored = whole, dict(stored)

    def names(self) -> list[str]:
        """Every tensor, by its new name."""
        return list(self._stored)

    def header(self, name: str) -> TensorHeader:
        """The tensor's type, shape and size, without reading it."""
        return self._whole.header(self._stored[name])

    def read(self, name: str, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor on `device`, as `dtype` (None: as stored)."""
        return self._whole.read(self._stored[name], device, dtype)

    def read_to_host(
        self, name: str, device: torch.device, dtype: torch.dtype | None = None
    ) -> Tensor:
        """The tensor on the host, with the values that `read` has."""
        return self._whole.read_to_host(self._stored[name], device, dtype)

    def stored_as(self, name: str) -> str:
        """The name that the other source knows a tensor by."""
        return self._stored[name]

    def part(self, name: str) -> FilePart | None:
        """Where the tensor's bytes lie in a file, as stored; None: they lie in none."""
        return self._whole.part(self._stored[name])

    def digest(self) -> str:
        """The other source's."""
        return self._whole.digest()


class TextPart(RenamedSource):
    """A multimodal checkpoint's text model.

    Attributes:
        wrapper: The record of the whole.
        left_out_bytes: The stored tensors of the other parts, and their sizes.
        key_mapping: For `from_pretrained` of the text model's class, which opens the whole with it.
    """

    def __init__(self, whole: ByteSource, wrapper: Wrapper) -> None:
        """Sort the stored tensors.

        Raises:
            PorosModelError: One of them belongs to no known part, or two have the same place.
        """
        stored: dict[str, str] = {}
        self.left_out_bytes: dict[str, int] = {}
        lost = []
        for name in whole.names():
            own = text_name(name, wrapper)
            if any(re.search(pattern, name) for pattern in wrapper.left_out):
                self.left_out_bytes[name] = whole.header(name).num_bytes
            elif own is None or own in stored:
                lost.append(name)
            else:
                stored[own] = name
        if lost:
            raise PorosModelError(
                f"{short_list(lost)}: of no known part of a {wrapper.model_type} model, or there "
                "twice",
                where=whole.name,
                remediation="download the model again; if it is whole, report it",
            )
        super().__init__(whole, stored)
        self.wrapper = wrapper
        has_head = "lm_head.weight" in stored
        self.config, _ = text_config(whole.config, where=whole.name, has_head=has_head)
        longest_first = sorted(wrapper.prefixes, key=lambda pair: -len(pair[0]))
        self.key_mapping = {f"^{re.escape(old)}": new for old, new in longest_first if old != new}

    def digest(self) -> str:
        """Sha256 over the whole's and the text model's config."""
        content = json.dumps(["text-part", super().digest(), self.config], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def told(self) -> str:
        """What is left out, for the user."""
        left_out = self.left_out_bytes
        parts = f"{len(left_out)} tensors of the other parts ({sum(left_out.values())} bytes)"
        return (
            f"only the text part of this {self.wrapper.model_type} model is loaded, "
            f"{self.config['architectures'][0]}; {parts} are left out: {short_list(left_out)}"
        )
