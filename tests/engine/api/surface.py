"""The public surface as it was first described, and what each parameter is seen to do.

`SIGNATURES` and `FIELDS` are that description; `SEEN` names the test of each parameter's effect. A
field's effect is a row of tests/engine/test_config_liveness.py.
"""

from __future__ import annotations

NEEDED = "needed"

_LORA = {
    "lora_rank": 16, "lora_alpha": 32, "lora_dropout": 0.05, "lora_target_modules": None,
}  # fmt: skip

SIGNATURES: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    # Name: parameters by place, parameters by name alone; each with its default.
    "PorosTrainer.from_pretrained": (
        {"model_name_or_path": NEEDED},
        {"quantization": "nf4", **_LORA, "block_size": None, "config": None},
    ),
    "PorosTrainer.train": (
        {"dataset": NEEDED},
        {"steps": None, "seq_len": None, "eval_dataset": None, "resume_from": None},
    ),
    "PorosTrainer.save": ({"output_dir": NEEDED}, {"push_to_hub": False, "hub_model_id": None}),
    "PorosTrainer.evaluate": ({"eval_dataset": NEEDED}, {}),
    "PorosModel.from_pretrained": (
        {"model_name_or_path": NEEDED},
        {"quantization": "nf4", "torch_dtype": "bfloat16", **_LORA, "adapter_backend": "auto"},
    ),
    "PorosModel.merge_and_unload": ({}, {}),
    "patch_hf_model": (
        {"model": NEEDED},
        {
            "block_size": None, "enable_prefetch": True, "preserve_rng_state": True,
            "arch_check": "error", "deterministic": True, "managed_parameter_filter": None,
        },
    ),
    "unprepare": ({"model": NEEDED}, {}),
    "validated_arch_types": ({}, {}),
    "user_asserted_arch_types": ({}, {}),
    "runnable_arch_types": ({}, {}),
    "architectures": ({}, {}),
}  # fmt: skip

PROPERTIES = ("PorosModel.model", "PorosModel.trainable_parameters")

OTHER_NAMES = (
    "prepare", "enforce_determinism", "register_architecture", "VALIDATED_BLOCKWISE_ARCH_TYPES",
    "PorosError", "PorosArchNotValidatedError", "PorosOOMError", "PorosConfigError", "Session",
    "PorosConfig",
)  # fmt: skip

FIELDS: dict[str, object] = {
    "model_name_or_path": "Qwen/Qwen2.5-7B", "quantization": "nf4", "torch_dtype": "bfloat16",
    "trust_remote_code": False, "block_size": None, "freeze_embeddings": True,
    "freeze_lm_head": True, "preserve_rng_state": True, "blockwise_arch_check": "error", **_LORA,
    "learning_rate": 2e-5, "weight_decay": 0.01, "max_grad_norm": 1.0, "warmup_steps": 100,
    "lr_scheduler": "cosine", "num_epochs": 1, "per_device_batch_size": 1,
    "gradient_accumulation_steps": 8, "max_seq_length": 2048, "seed": 42,
    "nf4_load_strategy": "auto", "enable_prefetch": True, "output_dir": "./poros_output",
    "save_steps": 500, "logging_steps": 10,
}  # fmt: skip

METRICS = (
    "final_loss", "total_steps", "avg_step_time_ms", "steps_per_sec", "peak_vram_allocated_gb",
    "peak_vram_reserved_gb",
)  # fmt: skip

_TRAINER, _MODEL, _HUB = (
    f"tests/engine/api/test_{name}.py" for name in ("trainer", "model", "publish")
)
_LOOP, _SETTINGS, _REFUSALS, _ANSWERS = (
    f"tests/engine/dropin/test_{name}.py"
    for name in ("plain_loop", "settings", "refusals", "answers")
)
_EACH = f"{_TRAINER}::test_each_argument_is_a_setting"
_SEEN = f"{_MODEL}::test_each_argument_is_seen"

SEEN: dict[str, dict[str, tuple[str, str]]] = {
    "PorosTrainer.from_pretrained": {
        "model_name_or_path": ("the model that is read", _EACH),
        "quantization": ("the config's field", _EACH),
        "lora_rank": ("the config's field", _EACH),
        "lora_alpha": ("the config's field", _EACH),
        "lora_dropout": ("the config's field", _EACH),
        "lora_target_modules": ("the config's field", _EACH),
        "block_size": ("the config's field", _EACH),
        "config": (
            "wins over the adapter's arguments",
            f"{_TRAINER}::test_a_config_wins_over_arguments_and_kwargs_win_over_it",
        ),
    },
    "PorosTrainer.train": {
        "dataset": ("what is learned", f"{_TRAINER}::test_a_data_set_trains_as_its_file_does"),
        "steps": ("how many steps", f"{_TRAINER}::test_train_returns_the_metrics"),
        "seq_len": ("samples are cut", f"{_TRAINER}::test_a_short_loud_run"),
        "eval_dataset": ("eval_loss is returned", f"{_TRAINER}::test_train_returns_the_metrics"),
        "resume_from": (
            "the same bits as a whole run",
            f"{_TRAINER}::test_a_run_goes_on_from_what_save_wrote_with_the_same_bits",
        ),
    },
    "PorosTrainer.save": {
        "output_dir": (
            "PEFT loads it",
            f"{_TRAINER}::test_the_saved_adapter_is_the_runs_and_loads_in_peft",
        ),
        "push_to_hub": ("the Hub has it", f"{_HUB}::test_save_pushes_when_it_is_told_to"),
        "hub_model_id": ("under this name", f"{_HUB}::test_save_pushes_when_it_is_told_to"),
    },
    "PorosTrainer.evaluate": {
        "eval_dataset": (
            "its loss",
            f"{_TRAINER}::test_evaluate_gives_the_loss_that_train_ended_with_and_changes_nothing",
        )
    },
    "PorosModel.from_pretrained": {
        "model_name_or_path": (
            "the resident model's logits",
            f"{_MODEL}::test_it_has_the_resident_models_logits_and_gradients",
        ),
        "quantization": ("the base's type", _SEEN),
        "torch_dtype": ("the arithmetic's type", _SEEN),
        "lora_rank": ("the matrices' rank", _SEEN),
        "lora_alpha": ("PEFT's lora_alpha", _SEEN),
        "lora_dropout": ("PEFT's lora_dropout", _SEEN),
        "lora_target_modules": ("fewer adapters", _SEEN),
        "adapter_backend": ("native is refused", _SEEN),
    },
    "patch_hf_model": {
        "model": (
            "the same model, streamed",
            f"{_LOOP}::test_a_prepared_model_trains_to_the_same_bits",
        ),
        "block_size": (
            "how many blocks travel; the same bits",
            f"{_SETTINGS}::test_block_size_is_how_many_layers_travel_together",
        ),
        "enable_prefetch": (
            "how much is copied while the first layer computes; the same bits",
            f"{_SETTINGS}::test_enable_prefetch_has_the_next_block_copied_while_one_computes",
        ),
        "preserve_rng_state": (
            "without it the gradients differ, the loss doesn't",
            f"{_SETTINGS}::test_preserve_rng_state_repeats_dropout_in_the_backward",
        ),
        "arch_check": (
            "an unknown family is refused, warned of, or let through",
            f"{_REFUSALS}::test_an_unknown_family_is_refused_or_runs_without_a_claim",
        ),
        "deterministic": (
            "the process's settings",
            f"{_ANSWERS}::test_determinism_is_left_alone_if_asked",
        ),
        "managed_parameter_filter": (
            "what it says no to doesn't travel",
            f"{_SETTINGS}::test_managed_parameter_filter_is_asked_by_name_and_keeps_what_it_says_no_to",
        ),
    },
    "unprepare": {
        "model": ("the very model again", f"{_ANSWERS}::test_unprepare_gives_back_the_very_model"),
    },
}
"""Each parameter's effect in words, and the test that sees it. `prepare` takes those of
`patch_hf_model`."""
