"""`PorosModel`: a streamed base with an adapter, without a run around it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import torch
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from poros.api.asked import answers, room_of, tell_warnings
from poros.api.folders import refuse_to_lose
from poros.config import PorosConfig
from poros.errors import PorosConfigError, PorosModelError
from poros.training.answers import plan_loop
from poros.training.cap import held_to
from poros.training.determinism import enforce_determinism, prepare_cuda
from poros.training.inputs import choose_device, open_model, read_tokenizer
from poros.training.lora import save_adapter, trainable_params
from poros.training.placement import Placement
from poros.training.streamed_model import load_configured, stream_model


class PorosModel:
    """A base whose layers are streamed, with an adapter on it.

    `model` can be called and trained as any model of PEFT; a run with checkpoints and samples is
    `PorosTrainer`'s. Layers stay on the device as far as a step of the config's batch and length
    leaves room. With ``vram_budget: auto`` all else is there, too; with a number of GB or ``min``
    the head may wait on the host: then a loss comes from labels given to the model, and logits have
    no gradient.

    Attributes:
        device: Where it computes.
    """

    def __init__(self, config: PorosConfig, *, adapter: Path | None = None) -> None:
        """Load.

        Args:
            config: Its settings of model, streaming, adapter, seed and device.
            adapter: A folder of PEFT, in place of the config's settings of the adapter.

        Raises:
            PorosModelError: Files are wrong, or the family is not one that runs.
            PorosHubError: The model can't be fetched.
        """
        prepare_cuda()
        self.device = choose_device(config.device)
        enforce_determinism(self.device, num_threads=config.cpu_threads)
        opened = open_model(config, tell_warnings)
        self._folder = opened.folder
        base = load_configured(
            config, opened.source, opened.architecture, device=self.device, emit=tell_warnings
        )
        with held_to(config.vram_budget, self.device):
            self._streamed = stream_model(
                base,
                plan_loop(base, config, self.device),
                config,
                device=self.device,
                emit=tell_warnings,
                adapter=adapter,
            )
        placement = Placement.of(self._streamed, None, emit=tell_warnings)
        self._room = room_of(placement, config.vram_budget)
        self._model: PeftModel | None = self._streamed.model
        self._model.eval()

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str,
        *,
        quantization: Literal["nf4", "bf16", "fp16", "bf16_bitwise"] = "nf4",
        torch_dtype: str = "bfloat16",
        lora_rank: int = 16,
        lora_alpha: int = 32,
        lora_dropout: float = 0.05,
        lora_target_modules: list[str] | str | None = None,
        adapter_backend: Literal["auto", "peft", "native"] = "auto",
    ) -> Self:
        """Load a model and put a new adapter on it.

        Args:
            model_name_or_path: Name on the Hub, or folder.
            quantization: How the frozen base is stored; ``bf16_bitwise`` is ``bf16``.
            torch_dtype: Type that an NF4 base computes in; a 16-bit base computes in its own.
            lora_rank: Rank of the adapter's matrices.
            lora_alpha: The adapter's output is multiplied by ``lora_alpha / lora_rank``.
            lora_dropout: Share of the adapter's inputs that training leaves out.
            lora_target_modules: Names of linears, or one pattern; None: all of the family's blocks.
            adapter_backend: ``auto`` and ``peft`` are PEFT; ``native`` is refused.

        Raises:
            PorosConfigError: A setting is wrong.
            PorosModelError: Files are wrong, or the family is not one that runs.
            PorosHubError: The model can't be fetched.
        """
        if adapter_backend not in ("auto", "peft"):
            raise PorosConfigError(
                f"adapter_backend is {adapter_backend!r}: adapters are PEFT's here, whose bits a"
                " resident run has",
                where="PorosModel",
                remediation="leave it out",
            )
        values: dict[str, Any] = {"torch_dtype": torch_dtype}
        if quantization != "nf4" and torch_dtype == "bfloat16":
            values = {}  # a 16-bit base has its own
        return cls(
            PorosConfig(
                model_name_or_path=model_name_or_path,
                quantization=quantization,
                lora_rank=lora_rank,
                lora_alpha=lora_alpha,
                lora_dropout=lora_dropout,
                lora_target_modules=lora_target_modules,  # type: ignore[arg-type]  # a list, too
                **values,
            )
        )

    @classmethod
    def load(
        cls,
        adapter: str,
        model_name_or_path: str,
        *,
        quantization: Literal["nf4", "bf16", "fp16", "bf16_bitwise"] = "nf4",
    ) -> Self:
        """Load a model with an adapter that was saved.

        Args:
            adapter: A folder that `save` or PEFT wrote.
            model_name_or_path: The base: name on the Hub, or folder.
            quantization: How the base is stored; as in the training, for the same answers.

        Raises:
            PorosModelError: The folder is no adapter, or not of this model.
        """
        config = PorosConfig(model_name_or_path=model_name_or_path, quantization=quantization)
        return cls(config, adapter=Path(adapter).expanduser())

    @property
    def model(self) -> PeftModel:
        """The underlying module: PEFT's model around the base.

        Raises:
            PorosModelError: It was merged and unloaded.
        """
        if self._model is None:
            raise PorosModelError(
                "the model was unloaded by merge_and_unload()",
                remediation="use the module that it returned, or load the model again",
            )
        return self._model

    @property
    def trainable_parameters(self) -> list[nn.Parameter]:
        """What an optimizer is for: the adapter's weights, in the model's order."""
        return [parameter for _, parameter in trainable_params(self.model)]

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer.

        Raises:
            PorosModelError: It has none.
        """
        return read_tokenizer(self._folder)

    def generate(self, prompts: str | Sequence[str], *, max_new_tokens: int = 64) -> list[str]:
        """The model's answers, the likeliest token each time.

        Args:
            prompts: One question or several; each is a conversation of its own.
            max_new_tokens: Most tokens of an answer.

        Raises:
            PorosOOMError: The device's memory is not enough, with all on the host that can be.
        """
        return answers(
            self.model, self.tokenizer, prompts, max_new_tokens=max_new_tokens, room=self._room
        )

    def save(self, output_dir: str) -> None:
        """Write the adapter as PEFT's standard files.

        Raises:
            PorosOutputError: The folder holds something else.
        """
        folder = Path(output_dir).expanduser()
        refuse_to_lose(folder)
        save_adapter(self.model, folder)

    def merge_and_unload(self) -> PreTrainedModel:
        """Merge the adapter into the base and give the base back, whole and on the host.

        In a 16-bit base the merged weights are those of PEFT's merge. In an NF4 base they are
        quantised anew, which loses something, and PEFT warns of it: `poros export` merges onto the
        16-bit weights instead. This object has no model afterwards.

        Raises:
            PorosModelError: The blocks are not in memory, or there is no model any more.
        """
        peft_model = self.model
        if self._streamed.base.host_tier == "disk":
            raise PorosModelError(
                "the model is read from disk, since the host's memory is too small for it",
                where="merge_and_unload()",
                remediation="merge with poros export, shard by shard",
            )
        host, placement = torch.device("cpu"), self._room.placement
        placement.rest()
        if placement.head is not None:
            placement.head.detach()
        self._streamed.ends.give_back(host)
        self._streamed.attachment.detach()
        for block in self._streamed.base.blocks:
            block.dissolve([host] * len(block.places))
        peft_model.to(host)
        merged: PreTrainedModel = peft_model.merge_and_unload()
        self._model = None
        return merged
