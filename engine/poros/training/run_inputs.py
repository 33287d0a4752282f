"""What the bits of a run depend on: recorded in each checkpoint, compared at each resume."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

import torch

from poros.config import PorosConfig
from poros.errors import PorosResumeError

NUMERIC = (
    "quantization", "torch_dtype", "attn_implementation", "preserve_rng_state",
    "lora_rank", "lora_alpha", "lora_dropout", "lora_target_modules", "adapter_dtype",
    "learning_rate", "weight_decay", "max_grad_norm", "warmup_steps", "lr_scheduler",
    "per_device_batch_size", "gradient_accumulation_steps", "autocast", "seed",
    "max_seq_length", "train_on", "overlong", "packing",
)  # fmt: skip
"""Settings that change the result."""

INVARIANT = (
    # Proved by the parity gate to change no bit.
    "block_size", "num_slots", "enable_prefetch", "vram_budget", "host_tier", "nf4_load_strategy",
    "nf4_cache",
    # What they lead to is recorded itself: digests, total steps, the device's name, threads.
    "model_name_or_path", "dataset", "on_bad_line", "num_epochs", "max_steps", "device",
    "cpu_threads",
    # They decide what is written, shown or refused.
    "trust_remote_code", "blockwise_arch_check", "freeze_embeddings", "freeze_lm_head",
    "eval_dataset", "output_dir", "save_steps", "keep_checkpoints", "logging_steps", "eval_steps",
    "samples", "sample_tokens", "resume", "allow_inexact_resume", "survive_hangup",
)  # fmt: skip
"""Settings that a resumed run may change."""

PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "accelerate")


def versions() -> dict[str, str]:
    """Versions of the libraries that compute."""
    return {name: metadata.version(name) for name in PACKAGES}


def run_inputs(
    config: PorosConfig,
    *,
    device: torch.device,
    dataset_digest: str,
    template_sha256: str,
    base_digest: str,
    total_steps: int,
) -> dict[str, Any]:
    """Every input by name, as plain JSON values."""
    inputs: dict[str, Any] = {name: _plain(getattr(config, name)) for name in NUMERIC}
    # A constant rate does not look at the end, so such a run may be made longer.
    inputs["total_steps"] = None if config.lr_scheduler == "constant" else total_steps
    inputs["dataset sha256"] = dataset_digest
    inputs["chat template sha256"] = template_sha256
    inputs["base model sha256"] = base_digest
    inputs |= versions()
    inputs |= device_inputs(device)
    return inputs


def device_inputs(device: torch.device) -> dict[str, Any]:
    """What of the machine decides which kernels run."""
    if device.type == "cuda":
        return {
            "device": torch.cuda.get_device_name(device),
            "compute capability": list(torch.cuda.get_device_capability(device)),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    return {
        "device": device.type,
        "machine": platform.machine(),
        "cpu instruction set": torch.backends.cpu.get_cpu_capability(),
        "cpu threads": torch.get_num_threads(),
    }


def compare_inputs(
    then: dict[str, Any], now: dict[str, Any], *, where: str
) -> PorosResumeError | None:
    """The error that tells what changed since the checkpoint; None: nothing."""
    names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    if not names:
        return None
    table = "; ".join(f"{n}: {_shown(then.get(n))} -> {_shown(now.get(n))}" for n in names)
    return PorosResumeError(
        f"the run would not go on bit for bit, these inputs changed: {table}",
        where=where,
        remediation="set them back, choose another output_dir,"
        " or --allow-inexact-resume (the run is then marked as not exact)",
    )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _shown(value: Any) -> str:
    text = str(value)
    return f"{text[:12]}..." if len(text) == 64 else text
