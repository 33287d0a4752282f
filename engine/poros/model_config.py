"""A model's config.json: read strictly, and refused where it asks for more than arithmetic."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from poros.arch_table import TABLE, WRAPPERS, ArchSpec, Wrapper
from poros.errors import PorosArchNotValidatedError, PorosModelError
from poros.weights_index import unreadable

CONFIG_FILE = "config.json"

_ATTENTIONS = (None, "eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")
SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
_MOST_LAYERS = 10_000  # building a model takes time for each, before weights are looked at
# Keys that make transformers fetch kernels, swap modules or read other files than the index names.
_REFUSED_KEYS = ("kernel_config", "use_kernels", "fusion_config", "transformers_weights")
_IMPLEMENTATIONS = ("attn_implementation", "experts_implementation")
# What a text config may leave to the config of the whole.
_SHARED_KEYS = (
    "bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype", "transformers_version",
)  # fmt: skip
_MEND = "restore the config.json that belongs to these weights"


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
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        raise PorosModelError(
            f"not readable as JSON ({error})",
            where=str(path),
            remediation="download the file again",
        ) from error
    return config_object(config, where=str(path))


def config_object(config: Any, *, where: str) -> dict[str, Any]:
    """What config.json holds, if it is an object.

    Raises:
        PorosModelError: It isn't.
    """
    if not isinstance(config, dict):
        raise PorosModelError(
            "not a JSON object", where=where, remediation="download the file again"
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
    named = _named_classes(config, where=where)
    if named and architecture.hf_class and architecture.hf_class not in named:
        raise PorosModelError(
            f"model_type {architecture.model_type!r} belongs to {architecture.hf_class}, but "
            f"architectures says {', '.join(named)}",
            where=where,
            remediation=f"{_MEND}, or correct hf_class in the family's record",
        )
    for key in SIZES:
        value = config.get(key)
        if type(value) is not int or value < 1:
            raise PorosModelError(
                f"{key} is {value!r}, expected a whole number above 0",
                where=where,
                remediation=_MEND,
            )
    if config["num_hidden_layers"] > _MOST_LAYERS:
        raise PorosModelError(
            f"num_hidden_layers is {config['num_hidden_layers']}, no model has that many",
            where=where,
            remediation=_MEND,
        )


def text_config(
    config: Mapping[str, Any], *, where: str = CONFIG_FILE, has_head: bool | None = None
) -> tuple[dict[str, Any], Wrapper | None]:
    """The config of the text model: a multimodal checkpoint's text part, or the config itself.

    Args:
        config: config.json as it stands.
        where: Whose, for messages.
        has_head: Whether a head is stored beside the embeddings. It decides whether they are tied
            where the two configs contradict each other or say nothing, as it does in stock.

    Returns:
        A config as a text-only checkpoint has it, and the record of the whole (None: no whole).

    Raises:
        PorosModelError: The whole contradicts itself, or has no text part.
        PorosArchNotValidatedError: The text part's family is not one that the whole may hold.
    """
    wrapper = next((w for w in WRAPPERS if w.model_type == config.get("model_type")), None)
    if wrapper is None:
        return dict(config), None
    inner = _inner_config(config, wrapper, where=where)
    hf_class = {spec.model_type: spec.hf_class for spec in TABLE}[inner["model_type"]]
    text = {key: config[key] for key in _SHARED_KEYS if config.get(key) is not None}
    # Dangerous keys anywhere in the whole are kept, for `check_config` to refuse.
    text |= {key: value for key, value in _all_items(config) if _is_checked(key)}
    text |= {key: v for key, v in inner.items() if v is not None or key not in text}
    text = dict(wrapper.text_sizes) | text
    text |= {"architectures": [hf_class]}
    if "quantization_config" in config:
        text["quantization_config"] = _text_quantisation(config["quantization_config"], wrapper)
    tied = _is_tied(inner.get("tie_word_embeddings"), config.get("tie_word_embeddings"), has_head)
    text.pop("tie_word_embeddings", None)  # null would untie them; left out, the class decides
    if tied is not None:
        text["tie_word_embeddings"] = tied
    return text, wrapper


def text_name(stored: str, wrapper: Wrapper) -> str | None:
    """What the text model calls a stored tensor or module; None: it has none of that name."""
    found = [pair for pair in wrapper.prefixes if stored.startswith(pair[0])]
    if not found:
        return None
    prefix, becomes = max(found, key=lambda pair: len(pair[0]))
    return becomes + stored[len(prefix) :]


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


def _named_classes(config: Mapping[str, Any], *, where: str) -> list[str]:
    named = config.get("architectures") or []
    if isinstance(named, list) and all(isinstance(name, str) for name in named):
        return named
    raise PorosModelError(
        f"architectures is {named!r}, expected a list of classes",
        where=where,
        remediation=_MEND,
    )


def _inner_config(config: Mapping[str, Any], wrapper: Wrapper, *, where: str) -> dict[str, Any]:
    named = _named_classes(config, where=where)
    if named and not set(wrapper.hf_classes) & set(named):
        raise PorosModelError(
            f"model_type {wrapper.model_type!r} belongs to {' or '.join(wrapper.hf_classes)}, but "
            f"architectures says {', '.join(named)}",
            where=where,
            remediation=_MEND,
        )
    inner = config.get("text_config")
    if not isinstance(inner, Mapping):
        raise PorosModelError(
            f"text_config is {inner!r}, expected the text model's settings",
            where=where,
            remediation=_MEND,
        )
    model_type = inner.get("model_type", wrapper.text_types[0])
    if model_type not in wrapper.text_types:
        raise PorosArchNotValidatedError(
            f"the text part of this {wrapper.model_type} model is {model_type!r}, which Poros "
            "does not run as one",
            where=where,
            remediation=f"known text parts of {wrapper.model_type}: "
            f"{', '.join(wrapper.text_types)}",
        )
    return {**inner, "model_type": model_type}


def _text_quantisation(quant: Any, wrapper: Wrapper) -> Any:
    """The settings, with the modules that stay in 16 bits under the text model's names."""
    if not isinstance(quant, Mapping) or not quant.get("llm_int8_skip_modules"):
        return quant
    skipped = []
    for path in quant["llm_int8_skip_modules"]:
        own = text_name(f"{path}.", wrapper)
        skipped.append(own[:-1] if own else path)
    return {**quant, "llm_int8_skip_modules": skipped}


def _is_tied(inner: bool | None, outer: bool | None, has_head: bool | None) -> bool | None:
    said = {value for value in (inner, outer) if value is not None}
    if len(said) == 1:
        return said.pop()
    if has_head is not None:
        return not has_head
    return outer


def _is_checked(key: str) -> bool:
    return key == "auto_map" or key in _REFUSED_KEYS or key.lstrip("_").startswith(_IMPLEMENTATIONS)


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
    if key.lstrip("_").startswith(_IMPLEMENTATIONS) and not _is_builtin(value):
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
