"""Architectures of transformers, small and freshly initialised: `check` must not warn about one.

`make zoo` prints what is found in each. Some cannot be made this small, and are named.
"""

import logging
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoConfig, AutoModel
from transformers.utils import logging as their_logging

from ormas_core import check_checkpoint

NAMES: Final = (
    "albert bart beit bert bloom convnext deberta-v2 deit dinov2 distilbert electra falcon gemma "
    "gemma2 gpt2 gpt_neo gpt_neox gptj llama mamba mbart mistral mixtral mobilenet_v2 mpnet opt "
    "pegasus phi qwen2 qwen3 regnet resnet roberta segformer swin t5 vit wav2vec2 xlm-roberta "
    "olmo2 cohere granite levit mobilevit hubert xlnet canine clip siglip blip vit_mae videomae "
    "cvt poolformer pvt data2vec-text data2vec-vision nystromformer m2m_100 fnet"
)

SIZES: Final = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "image_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_local_experts"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("num_key_value_heads", "type_vocab_size"), 2),
    **dict.fromkeys(("intermediate_size", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim"), 64),
    "hidden_dim": 64,
    "d_kv": 16,
    "head_dim": 16,
    "patch_size": 8,
    "vocab_size": 99,
}
"""What makes a model small, by the names that configs have for it."""


def shrink(config: Any) -> None:
    """Make a config small, and those inside it."""
    for name, size in SIZES.items():
        if type(getattr(config, name, None)) is int:
            setattr(config, name, size)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:2]
    for name in ("text_config", "vision_config"):
        if getattr(config, name, None) is not None:
            shrink(getattr(config, name))


def main() -> int:
    """Print a line for each; return 1 if there is a warning."""
    logging.disable(logging.CRITICAL)
    their_logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    loud = 0
    for name in NAMES.split():
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as folder:
            try:
                config = AutoConfig.for_model(name)
                shrink(config)
                AutoModel.from_config(config).save_pretrained(folder)
            except Exception as error:  # noqa: BLE001 - a size that this one does not take
                print(f"{name}: not made ({type(error).__name__}: {error!s:.80})")
                continue
            result = check_checkpoint(Path(folder))
        code, why = result.verdict("warning")
        loud += code != 0
        print(f"{name}: {result.tensors} tensors, exit {code}, {why}; {result.counts}")
    print(f"{loud} of {len(NAMES.split())} architectures with a warning")
    return 1 if loud else 0


if __name__ == "__main__":
    sys.exit(main())
