"""What a tensor is for, as far as its name and shape tell."""

import re
from collections.abc import Mapping
from typing import Any, Final

from ormas_core.checkpoints.tensors import TensorFacts

_BUFFERS: Final = re.compile(
    r"(?:^|\.)(?:position_ids|token_type_ids|num_batches_tracked|running_mean|running_var|"
    r"inv_freq|original_inv_freq|(?:cos|sin)_cached|freqs_cis|freqs|masked_bias|"
    r"relative_position_index|relative_coords_table|anchors?|[\w]*mask[\w]*|"
    r"scale_inv|weight_scale(?:_inv)?|input_scale|[kv]_scale|logit_scale)$"
)
_BASIS: Final = re.compile(r"(?:^|[._])(?:i?stft|i?dft|i?fft|mel|melspec|spectrogram)(?:[._]|$)")
_CAUSAL: Final = re.compile(r"attn(?:\.attention)?\.bias$")
_EMBEDDING: Final = re.compile(
    r"(?:^|[._])(?:wte|wpe|shared|lm_head|[\w]*emb(?:ed)?(?:ding)?s?(?:_[\w]+)?|embed_out)\.weight$"
)
_VOCABULARY: Final = re.compile(
    r"(?:^|\.)(?:wte|shared|embed_tokens|tok_embeddings|word_embeddings|embed_in|embed_out|"
    r"lm_head|predictions\.decoder|lm_head\.decoder)\.weight$"
)
_WEIGHT: Final = re.compile(r"(?:weight|kernel|proj|(?:^|_)w\d?$)")
_NORM: Final = re.compile(r"(?:norm|(?:^|[._])ln|(?:^|[._])bn)[\w]*$", re.IGNORECASE)
_ADAPTER: Final = re.compile(
    r"(?:^|[._])(lora_(?:embedding_)?[AB]|lora_(?:down|up|mid)|lora_magnitude_vector|ia3_l|"
    r"hada_\w+|lokr_\w+|vera_lambda_[bd])(?:[._]|$)"
)

ONE_PLUS: Final = frozenset(
    {
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "minimax_m3_vl",
        "muse_glimmer",
        "muse_spark",
        "nemotron",
        "paligemma",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_next",
        "qwen4_exp",
        "recurrent_gemma",
        "shieldgemma2",
        "step3p5",
        "step3p7",
        "t5gemma",
        "t5gemma2",
        "vaultgemma",
        "videoprism",
    }
)
"""`model_type` of the families whose norms multiply by 1 + weight (transformers 5.24)."""


def leaf(name: str) -> str:
    """Return the last part of a dotted name."""
    return name.rpartition(".")[2]


def layer(name: str) -> str:
    """Return a dotted name without its last part."""
    return name.rpartition(".")[0]


def is_buffer(facts: TensorFacts) -> bool:
    """Whether it is no parameter by its name: masks, counters, tables, running statistics."""
    causal = len(facts.shape) == 4 and _CAUSAL.search(facts.clean)  # noqa: PLR2004 - (1, 1, n, n)
    return bool(causal or _BUFFERS.search(facts.clean))


def is_basis(facts: TensorFacts) -> bool:
    """Whether it is a fixed transform, such as the sines of a spectrogram, some of which are 0."""
    return _BASIS.search(facts.clean) is not None


def is_adapter(facts: TensorFacts) -> bool:
    """Whether it belongs to a low-rank adapter."""
    return _ADAPTER.search(facts.clean) is not None


def is_hollow(facts: TensorFacts) -> bool:
    """Whether it is a weight of shape (0,), as a process saves one that others hold."""
    return facts.shape == (0,) and (leaf(facts.clean) == "weight" or is_adapter(facts))


def is_embedding(facts: TensorFacts) -> bool:
    """Whether it is a table whose rows are looked up, or the output layer over a vocabulary."""
    if len(facts.shape) != 2:  # noqa: PLR2004 - rows and their features
        return False
    return bool(_EMBEDDING.search(facts.clean) or _VOCABULARY.search(facts.clean))


def is_vocabulary(facts: TensorFacts) -> bool:
    """Whether it is a table with a row for each token."""
    return len(facts.shape) == 2 and _VOCABULARY.search(facts.clean) is not None  # noqa: PLR2004


def is_matrix(facts: TensorFacts) -> bool:
    """Whether it is the weight of a layer: floating, two axes or more, no buffer or adapter."""
    return (
        facts.floating
        and len(facts.shape) > 1
        and _WEIGHT.search(leaf(facts.clean)) is not None
        and not leaf(facts.clean).endswith("bias")  # those of experts have two axes
        and not (len(facts.shape) > 3 and set(facts.shape[:-1]) == {1})  # noqa: PLR2004 - a vector
        and not is_buffer(facts)
        and not is_adapter(facts)
    )


def is_norm_name(name: str) -> bool:
    """Whether a layer is a normalisation by its name."""
    return _NORM.search(name) is not None


def model_type(config: Mapping[str, Any] | None) -> str:
    """Return the `model_type` of a model folder, or nothing."""
    found = (config or {}).get("model_type", "")
    return found if isinstance(found, str) else ""


def adds_one(config: Mapping[str, Any] | None) -> bool:
    """Whether the family, or the text model in it, stores the scales of its norms minus one."""
    whole = config or {}
    parts = (whole, whole.get("text_config"))
    return any(isinstance(part, Mapping) and model_type(part) in ONE_PLUS for part in parts)


def text_setting(config: Mapping[str, Any] | None, name: str) -> Any:
    """Return a setting of the config, or of the text model in it; None if neither has it."""
    whole = config or {}
    for part in (whole, whole.get("text_config")):
        if isinstance(part, Mapping) and part.get(name) is not None:
            return part[name]
    return None
