"""A loaded base put together: its adapter on it, its ends and the ring where a plan has them.

One order for runs, answers and the API alike: ends that stay on the host are taken before the
others move to the device, adapters go on before the layers' forwards are replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel

from poros.arch_table import ArchSpec
from poros.config import PorosConfig
from poros.events import Event
from poros.loading import nf4_cache
from poros.loading.base_model import BaseModel, Meanwhile, load_base_model, place_ends
from poros.loading.byte_source import ByteSource
from poros.memory_plan import MemoryPlan
from poros.streaming.attach import Attachment, SideRules, attach
from poros.streaming.block_manager import BlockManager
from poros.streaming.boundaries import boundaries_of
from poros.training.host_ends import HostEnds, take_ends
from poros.training.kv_cache import is_kv_cache
from poros.training.lora import attach_lora
from poros.training.streamed_head import StreamedHead

Emit = Callable[[Event], None]


@dataclass(kw_only=True)
class StreamedModel:
    """A model on the ring, with its adapter.

    Attributes:
        base: As it was loaded.
        plan: What lies where.
        device: Where it computes.
        model: PEFT's model around the base.
        ends: Head and embeddings.
        manager: The ring.
        attachment: The layers on it.
        head: The head's part in the model's forward, if it is on the host.
    """

    base: BaseModel
    plan: MemoryPlan
    device: torch.device
    model: PeftModel
    ends: HostEnds
    manager: BlockManager
    attachment: Attachment
    head: StreamedHead | None


def load_configured(
    config: PorosConfig,
    source: ByteSource,
    architecture: ArchSpec,
    *,
    device: torch.device,
    emit: Emit,
    meanwhile: Meanwhile | None = None,
) -> BaseModel:
    """The base as a config wants it; see `load_base_model`."""
    return load_base_model(
        source,
        device=device,
        quantization=config.quantization,
        dtype=getattr(torch, config.torch_dtype),
        layers_per_block=config.layers_per_block,
        cache=nf4_cache.location(config.nf4_cache),
        attn_implementation=config.attn_implementation,
        emit=emit,
        trust_remote_code=config.trust_remote_code,
        load_strategy=config.nf4_load_strategy,
        architecture=architecture,
        host_tier=config.host_tier,
        meanwhile=meanwhile,
    )


def stream_model(
    base: BaseModel,
    plan: MemoryPlan,
    config: PorosConfig,
    *,
    device: torch.device,
    emit: Emit,
    adapter: Path | None = None,
) -> StreamedModel:
    """Put a base together as a plan has it.

    Args:
        base: As loaded, its ends on the host.
        plan: Moments and adapters that it has on the host are the optimizer's to move
            (`Attachment.travel`); adapters are at least made there.
        config: Its settings of the adapter and of streaming.
        device: Where the model computes.
        emit: Is told of a head that has to be on the device.
        adapter: A folder of PEFT, in place of the config's settings of the adapter.

    Raises:
        PorosConfigError: The adapter's targets match nothing.
        PorosModelError: The folder is no adapter, or not of this model.
    """
    ends = take_ends(base, plan, device)
    place_ends(base, device, without=ends.paths)
    model = attach_lora(
        base,
        rank=config.lora_rank,
        alpha=config.lora_alpha,
        dropout=config.lora_dropout,
        targets=config.lora_target_modules,
        seed=config.seed,
        adapter_path=adapter,
        dtype=getattr(torch, config.adapter_dtype),
        on_host=plan.adapters_on_host,
    )
    manager = BlockManager(
        base.blocks,
        device=device,
        num_slots=plan.num_slots,
        prefetch=config.enable_prefetch,
        resident=plan.resident,
    )
    attachment = attach(
        base.layers,
        manager,
        device=device,
        layers_per_block=config.layers_per_block,
        drop=is_kv_cache,
        preserve_rng=config.preserve_rng_state,
        rules=SideRules(
            per_layer_input=base.architecture.per_layer_input,
            shared_states=base.architecture.shared_states,
        ),
        model=model,
        boundaries=boundaries_of(plan, manager, device),
    )
    prefetch = config.enable_prefetch and plan.head_prefetch
    head = ends.attach(base.model, manager, prefetch=prefetch, emit=emit)
    return StreamedModel(
        base=base,
        plan=plan,
        device=device,
        model=model,
        ends=ends,
        manager=manager,
        attachment=attachment,
        head=head,
    )
