"""A checkpoint that stock transformers has quantised: ``nf4_load_strategy: gpu``.

`from_pretrained` reads the folder and quantises all of it on the device; its tensors, as a stock
4-bit folder would hold them, then are a source like any other.
"""

from __future__ import annotations

import copy
import gc
import json
from typing import Any

import torch
from torch import Tensor
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PretrainedConfig, PreTrainedModel

from poros.errors import PorosConfigError, PorosModelError
from poros.loading import nf4
from poros.loading.byte_source import TORCH_DTYPES, ByteSource
from poros.loading.skeleton import nf4_settings
from poros.loading.text_part import TextPart
from poros.streaming.file_reader import FilePart
from poros.weights_index import TensorHeader

_NAME_OF = {dtype: name for name, dtype in TORCH_DTYPES.items()}


class StockSource:
    """The tensors of a 16-bit folder after stock's load, on the host."""

    def __init__(
        self,
        source: ByteSource,
        hf_config: PretrainedConfig,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Load all of the model on ``device``, and bring it to the host.

        Args:
            source: Its folder is what is read.
            hf_config: The model's settings; no code of the folder is looked for.
            dtype: The arithmetic, and what is not quantised.
            device: Where the linears are quantised.

        Raises:
            PorosConfigError: The source is no folder.
            PorosModelError: transformers can't load it.
        """
        self.name, self.folder = source.name, source.folder
        self._digest = source.digest()
        self._key_mapping = source.key_mapping if isinstance(source, TextPart) else None
        model = self._load(hf_config, dtype, device)
        self.config: dict[str, Any] = json.loads(model.config.to_json_string())
        tied = model.all_tied_weights_keys
        stored = nf4.stored_tensors(model, "")
        self._tensors = {name: t.contiguous() for name, t in stored.items() if name not in tied}
        # Linears and their weights hold each other: without this they stay on the device.
        del model, stored
        gc.collect()

    def names(self) -> list[str]:
        """Every tensor of the checkpoint."""
        return list(self._tensors)

    def header(self, name: str) -> TensorHeader:
        """The tensor's type, shape and size."""
        tensor = self._tensors[name]
        num_bytes = tensor.numel() * tensor.element_size()
        return TensorHeader(_NAME_OF[tensor.dtype], tuple(tensor.shape), num_bytes)

    def read(self, name: str, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor on `device`, as `dtype` (None: as stored)."""
        return self._tensors[name].to(device=device, dtype=dtype)

    def read_to_host(
        self, name: str, device: torch.device, dtype: torch.dtype | None = None
    ) -> Tensor:
        """The tensor on the host, where it lies."""
        del device
        return self.read(name, torch.device("cpu"), dtype)

    def part(self, name: str) -> FilePart | None:
        """No file holds the bytes."""
        del name
        return None

    def digest(self) -> str:
        """The folder's."""
        return self._digest

    def _load(
        self, hf_config: PretrainedConfig, dtype: torch.dtype, device: torch.device
    ) -> PreTrainedModel:
        if self.folder is None:
            raise PorosConfigError(
                f"nf4_load_strategy gpu needs a folder, {self.name} is made up",
                remediation="delete nf4_load_strategy",
            )
        # Settings in the config would tell stock that the files are quantised already.
        hf_config = copy.deepcopy(hf_config)
        vars(hf_config).pop("quantization_config", None)
        model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(hf_config)]
        try:
            model: PreTrainedModel = model_class.from_pretrained(
                str(self.folder),
                config=hf_config,
                dtype=dtype,
                device_map={"": device},
                quantization_config=nf4_settings(dtype),
                use_safetensors=True,
                local_files_only=True,
                key_mapping=self._key_mapping,
            )
        except (OSError, ValueError, TypeError, KeyError) as error:
            reason = str(error).partition("\n")[0][:200]
            raise PorosModelError(
                f"stock transformers can't load it ({type(error).__name__}: {reason})",
                where=self.name,
                remediation="delete nf4_load_strategy: the other ways load layer by layer",
            ) from error
        return model
