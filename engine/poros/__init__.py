"""Poros: fine-tune large models on small GPUs, bit for bit as a resident run would.

Public names are resolved at their first use, so that ``import poros`` needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from poros._version import __version__

if TYPE_CHECKING:
    from poros.api.model import PorosModel
    from poros.api.trainer import PorosTrainer
    from poros.arch_registry import (
        VALIDATED_BLOCKWISE_ARCH_TYPES,
        architectures,
        find_architecture,
        register_architecture,
        runnable_arch_types,
        user_asserted_arch_types,
        validated_arch_types,
    )
    from poros.arch_table import ArchSpec
    from poros.config import PorosConfig
    from poros.config_load import LoadedConfig, dump_config, load_config
    from poros.dropin.prepare import patch_hf_model, prepare, unprepare
    from poros.errors import (
        PorosArchNotValidatedError,
        PorosConfigError,
        PorosDataError,
        PorosDeviceLostError,
        PorosError,
        PorosHostMemoryError,
        PorosHubError,
        PorosModelError,
        PorosNonFiniteError,
        PorosOOMError,
        PorosOutputError,
        PorosParityError,
        PorosResumeError,
        PorosStorageError,
    )
    from poros.training.determinism import enforce_determinism
    from poros.training.session import Session

_MODULE_OF = {
    "ArchSpec": "poros.arch_table",
    "LoadedConfig": "poros.config_load",
    "PorosArchNotValidatedError": "poros.errors",
    "PorosConfig": "poros.config",
    "PorosConfigError": "poros.errors",
    "PorosDataError": "poros.errors",
    "PorosDeviceLostError": "poros.errors",
    "PorosError": "poros.errors",
    "PorosHostMemoryError": "poros.errors",
    "PorosHubError": "poros.errors",
    "PorosModel": "poros.api.model",
    "PorosModelError": "poros.errors",
    "PorosNonFiniteError": "poros.errors",
    "PorosOOMError": "poros.errors",
    "PorosOutputError": "poros.errors",
    "PorosParityError": "poros.errors",
    "PorosResumeError": "poros.errors",
    "PorosStorageError": "poros.errors",
    "PorosTrainer": "poros.api.trainer",
    "Session": "poros.training.session",
    "VALIDATED_BLOCKWISE_ARCH_TYPES": "poros.arch_registry",
    "architectures": "poros.arch_registry",
    "dump_config": "poros.config_load",
    "enforce_determinism": "poros.training.determinism",
    "find_architecture": "poros.arch_registry",
    "load_config": "poros.config_load",
    "patch_hf_model": "poros.dropin.prepare",
    "prepare": "poros.dropin.prepare",
    "register_architecture": "poros.arch_registry",
    "runnable_arch_types": "poros.arch_registry",
    "unprepare": "poros.dropin.prepare",
    "user_asserted_arch_types": "poros.arch_registry",
    "validated_arch_types": "poros.arch_registry",
}

__all__ = [
    "VALIDATED_BLOCKWISE_ARCH_TYPES",
    "ArchSpec",
    "LoadedConfig",
    "PorosArchNotValidatedError",
    "PorosConfig",
    "PorosConfigError",
    "PorosDataError",
    "PorosDeviceLostError",
    "PorosError",
    "PorosHostMemoryError",
    "PorosHubError",
    "PorosModel",
    "PorosModelError",
    "PorosNonFiniteError",
    "PorosOOMError",
    "PorosOutputError",
    "PorosParityError",
    "PorosResumeError",
    "PorosStorageError",
    "PorosTrainer",
    "Session",
    "__version__",
    "architectures",
    "dump_config",
    "enforce_determinism",
    "find_architecture",
    "load_config",
    "patch_hf_model",
    "prepare",
    "register_architecture",
    "runnable_arch_types",
    "unprepare",
    "user_asserted_arch_types",
    "validated_arch_types",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'poros' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
