"""A model's config.json: read strictly, and refused where it asks for more than arithmetic."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from poros.arch_table import ArchSpec
from poros.errors import PorosModelError

CONFIG_FILE = "config.json"

_ATTENTIONS = (None, "eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")
_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
# Keys that make transformers fetch kernels, swap modules or read other files than the index names.
_REFUSED_KEYS = ("kernel_config", "use_kernels", "fusion_config", "transformers_weights")


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json.

    Raises:
        PorosModelError: There is none, or it isn't a JSON object.
    """
    path = folder / CONFIG_FILE
    try:
        config = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise PorosModelError(
            f"no {CONFIG_FILE}",
            where=str(folder),
            remediation="give the folder that holds config.json and the safetensors files",
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise PorosModelError(
            f"not readable as JSON ({error})",
            where=str(path),
            remediation="download the file again",
        ) from error
    if not isinstance(config, dict):
        raise PorosModelError(
            "not a JSON object", where=str(path), remediation="download the file again"
        )
    return config


def check_config(
    config: Mapping[str, Any],
    architecture: ArchSpec,
    *,
    where: str,
    trust_remote_code: bool = False,
) -> None:
    """Refuse a config that would run foreign code, or that contradicts itself.

    Raises:
        PorosModelError: With the key, its value and the mend.
    """
    for key, value in _all_items(config):
        _check_item(key, value, where=where, trust_remote_code=trust_remote_code)
    named = config.get("architectures")
    if named and architecture.hf_class not in named:
        raise PorosModelError(
            f"model_type {architecture.model_type!r} belongs to {architecture.hf_class}, but "
            f"architectures says {', '.join(map(str, named))}",
            where=where,
            remediation="restore the config.json that belongs to these weights",
        )
    for key in _SIZES:
        value = config.get(key)
        if type(value) is not int or value < 1:
            raise PorosModelError(
                f"{key} is {value!r}, expected a whole number above 0",
                where=where,
                remediation="restore the config.json that belongs to these weights",
            )


def is_prequantised(config: Mapping[str, Any], *, where: str) -> bool:
    """Whether the weights are 4-bit NF4 already.

    Raises:
        PorosModelError: They are quantised in a way that Poros does not train on.
    """
    quant = config.get("quantization_config")
    if quant is None:
        return False
    quant = quant if isinstance(quant, Mapping) else {}
    method = quant.get("quant_method")
    nf4 = quant.get("load_in_4bit") and quant.get("bnb_4bit_quant_type") == "nf4"
    plain = quant.get("bnb_4bit_quant_storage", "uint8") == "uint8"
    if method == "bitsandbytes" and nf4 and plain:
        return True
    kind = f"{method}" if method != "bitsandbytes" else "bitsandbytes, not NF4 in uint8"
    raise PorosModelError(
        f"the weights are quantised already ({kind})",
        where=where,
        remediation="use the 16-bit original; Poros quantises it to NF4 itself",
    )


def _all_items(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        yield key, value
        if isinstance(value, Mapping):
            yield from _all_items(value)


def _check_item(key: str, value: Any, *, where: str, trust_remote_code: bool) -> None:
    if key == "auto_map" and value and not trust_remote_code:
        raise PorosModelError(
            f"auto_map asks to run code that came with the model: {json.dumps(value)}",
            where=where,
            remediation="delete auto_map from config.json: Poros's families need none "
            "(trust_remote_code: true ignores it as well, with a warning)",
        )
    implementation = key.lstrip("_").startswith(("attn_implementation", "experts_implementation"))
    if implementation and not _is_builtin(value):
        raise PorosModelError(
            f"{key} names a kernel to fetch: {value!r}",
            where=where,
            remediation=f"delete {key} from config.json",
        )
    if key in _REFUSED_KEYS and value:
        raise PorosModelError(
            f"{key} is not accepted from a model's config",
            where=where,
            remediation=f"delete {key} from config.json",
        )


def _is_builtin(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_builtin(inner) for inner in value.values())
    return value in (*_ATTENTIONS, "batched_mm", "grouped_mm")
