"""Write a checkpoint as a Hugging Face folder: python -m models.demo.export --work build/demo --to models/demo

Owns the exported layout: weights in bfloat16, the configuration, the tokenizer with its chat template, and the record
of the training run beside them.
"""

import argparse
import csv
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from models.demo.network import Shape
from models.demo.tokens import CHAT_TEMPLATE, END, END_OF_TEXT, START
from safetensors.torch import save_file
from tokenizers import Tokenizer

HARDWARE = "two cores of an x86-64 server processor with AVX-512, shared with other work; float32; no accelerator"
CURVE_POINTS = 400  # rows of loss.csv; the full log stays with the checkpoints


def configuration(shape: Shape, end_of_text: int, end: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **shape.as_dict(),
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": end_of_text,
        "pretraining_tp": 1,
        "use_cache": True,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
    }


def tokenizer_configuration(shape: Shape, tokenizer: Tokenizer) -> dict[str, Any]:
    plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    names = (END_OF_TEXT, START, END)
    special = {str(tokenizer.token_to_id(name)): {"content": name, **plain} for name in names}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": special,
        "additional_special_tokens": [START, END],
        "bos_token": None,
        "eos_token": END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": shape.max_position_embeddings,
        "chat_template": CHAT_TEMPLATE,
    }


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def export(work: Path, to: Path) -> None:
    state = torch.load(work / "last.pt", weights_only=True)
    shape = Shape()
    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    end_of_text, end = tokenizer.token_to_id(END_OF_TEXT), tokenizer.token_to_id(END)
    to.mkdir(parents=True, exist_ok=True)
    weights = {name: weight.to(torch.bfloat16).contiguous() for name, weight in state["network"].items()}
    save_file(weights, to / "model.safetensors", metadata={"format": "pt"})
    (to / "model.safetensors").chmod(0o644)  # safetensors writes for the owner alone
    write_json(to / "config.json", configuration(shape, end_of_text, end))
    generation = {
        "eos_token_id": [end, end_of_text],
        "pad_token_id": end_of_text,
        "do_sample": True,
        "temperature": 0.6,
        "top_p": 0.9,
    }
    write_json(to / "generation_config.json", generation)
    shutil.copyfile(work / "tokenizer.json", to / "tokenizer.json")
    write_json(to / "tokenizer_config.json", tokenizer_configuration(shape, tokenizer))
    write_json(
        to / "special_tokens_map.json",
        {"eos_token": END, "pad_token": END_OF_TEXT, "additional_special_tokens": [START, END]},
    )
    record(work, to, state)


def record(work: Path, to: Path, state: dict[str, Any]) -> None:
    """training.json, loss.csv and loss.png: how the weights came to be."""
    with (work / "loss.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if int(row["step"]) <= state["progress"]["step"]]
    last = [float(row["loss"]) for row in rows[-50:]]
    progress = state["progress"]
    write_json(to / "training.json", {
        "seed": state["plan"]["seed"],
        "parameters": sum(weight.numel() for weight in state["network"].values()),
        "steps": progress["step"],
        "tokens_seen": progress["tokens"],
        "minutes": round(progress["seconds"] / 60, 1),
        "loss_of_the_last_50_steps": round(sum(last) / len(last), 4),
        "hardware": HARDWARE,
        "plan": state["plan"],
    })  # fmt: skip
    stride = max(1, len(rows) // CURVE_POINTS)
    kept = rows[::stride]
    with (to / "loss.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, kept[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept)
    draw([float(row["tokens"]) / 1e6 for row in kept], [float(row["loss"]) for row in kept], to / "loss.png")


def draw(tokens: list[float], loss: list[float], path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # matplotlib's own deprecations say nothing about the curve
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(5.0, 2.6), dpi=110)
    axes.plot(tokens, loss, linewidth=1.0, color="#2f6f8f")
    axes.set(xlabel="tokens seen (millions)", ylabel="loss (nats per token)", yscale="log")
    axes.grid(alpha=0.3, which="both")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/demo"))
    parser.add_argument("--to", type=Path, default=Path("models/demo"))
    args = parser.parse_args()
    export(args.work, args.to)
    size = sum(path.stat().st_size for path in args.to.iterdir() if path.is_file())
    print(f"wrote {args.to}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
