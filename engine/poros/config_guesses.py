"""What a key is called that nobody has: the names of other tools, and what is spelt like it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LEAST_ALIKE = 0.6
"""Below it, what difflib finds has another meaning as a rule."""
_ELSEWHERE = {
    "model_name_or_path": "model model_id model_name model_path base base_model pretrained_model"
    " name_or_path",
    "quantization": "quant quantize bits load_in_4bit load_in_8bit bnb_4bit_quant_type",
    "torch_dtype": "dtype precision compute_dtype bnb_4bit_compute_dtype",
    "attn_implementation": "attn attention flash_attention",
    "vram_budget": "vram vram_gb vram_limit gpu_memory gpu_memory_limit max_memory memory budget",
    "nf4_cache": "cache cache_dir",
    "lora_rank": "r rank lora_r lora_dim",
    "lora_alpha": "alpha",
    "lora_dropout": "dropout",
    "lora_target_modules": "target_modules targets modules lora_target lora_targets lora_modules",
    "learning_rate": "lr rate",
    "weight_decay": "wd decay",
    "max_grad_norm": "grad_clip gradient_clip gradient_clipping clip clip_norm max_norm grad_norm",
    "warmup_steps": "warmup warm_up warmup_ratio num_warmup_steps",
    "lr_scheduler": "scheduler schedule lr_schedule lr_scheduler_type",
    "num_epochs": "epochs epoch n_epochs num_train_epochs max_epochs",
    "max_steps": "steps num_steps total_steps iters iterations max_iters num_iters",
    "per_device_batch_size": "batch_size batch bs micro_batch micro_batch_size train_batch_size"
    " per_device_train_batch_size",
    "gradient_accumulation_steps": "accumulation accumulation_steps grad_accum grad_accumulation"
    " grad_accum_steps gradient_accumulation",
    "autocast": "amp bf16 mixed_precision",
    "seed": "random_seed",
    "device": "gpu cuda device_map",
    "cpu_threads": "threads num_threads",
    "dataset": "data data_path data_file datasets dataset_path dataset_name train_data train_file"
    " train_dataset train_path training_data",
    "eval_dataset": "eval_data eval_file val_data val_dataset val_file validation validation_data"
    " validation_file test_data test_file",
    "max_seq_length": "seq_len seq_length seqlen sequence_len sequence_length max_len max_length"
    " max_seq_len max_tokens context context_length context_size cutoff_len model_max_length"
    " block_len",
    "train_on": "train_on_inputs completion_only completion_only_loss loss_on",
    "packing": "pack sample_packing",
    "output_dir": "out output out_dir output_path save_dir run_dir run_folder",
    "save_steps": "save save_every save_interval checkpoint_steps checkpoint_every",
    "keep_checkpoints": "save_total_limit max_checkpoints checkpoints",
    "logging_steps": "logging log_every log_steps log_interval",
    "eval_steps": "eval_every eval_interval",
    "samples": "prompt prompts sample sample_prompts eval_prompts",
    "sample_tokens": "max_new_tokens",
    "resume": "checkpoint resume_from resume_from_checkpoint",
}
_KEYS = {name: key for key, names in _ELSEWHERE.items() for name in names.split()}


def known_elsewhere(name: object) -> str:
    """The key of a setting that other tools call so; empty: none."""
    return _KEYS.get(_plain(name), "")


def meant(key: object, known: Iterable[str]) -> str:
    """The key that was meant by one that no field has; empty: nobody can tell.

    Args:
        key: As it was given.
        known: Those that there are.
    """
    names = list(known)
    if (elsewhere := known_elsewhere(key)) in names:
        return elsewhere
    return next(iter(difflib.get_close_matches(_plain(key), names, n=1, cutoff=_LEAST_ALIKE)), "")


def _plain(name: object) -> str:
    return str(name).lower().replace("-", "_")
