"""Unpack a GGUF file into a folder with weights in bfloat16, for peers that read no GGUF."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from app.text.tokenizer_files import load_tokenizer
from engine.model_files.gguf import open_gguf
from engine.model_files.gguf_config import gguf_config, gguf_weights, heads_in_halves
from engine.model_files.gguf_tensors import dequantized, in_halves
from engine.model_files.open_model import open_model


def unpack(file: Path, folder: Path) -> None:
    """Write the weights, config and tokenizer of a GGUF file, unless an earlier run did. Its template is left out."""
    done = folder / "generation_config.json"  # written last
    if done.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    model = open_gguf(file)
    config = gguf_config(model)
    weights: dict[str, Tensor] = {}
    for name, info in gguf_weights(model).items():
        heads = heads_in_halves(model, name, config)
        weights[name] = dequantized(info) if heads is None else in_halves(dequantized(info), heads)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    files = open_model(file)
    tokenizer, _ = load_tokenizer(files)
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config["max_position_embeddings"],
        "eos_token": tokenizer.id_to_token(config["eos_token_id"]),
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    done.write_text(json.dumps(dict(files.generation_config().content)))
