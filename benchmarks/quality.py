"""What quantised products cost in quality: KL divergence and perplexity against the float32 values of the same file.

The text is 16,000 tokens of news (lee_background.cor of the package gensim) and 4,000 of this project's documents, in
windows of 512 tokens, of which the second half is scored, as llama-perplexity does. The reference is the dequantised
file in float32, in torch. With --llama, llama-perplexity measures the same text and file against its own reference.

    python -m benchmarks.quality FILE.gguf
    python -m benchmarks.quality FILE.gguf --llama      # after python -m benchmarks.peers --setup
    python -m benchmarks.quality FOLDER --quantization int8,int4
"""

from __future__ import annotations

import argparse
import itertools
import re
import statistics
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from app.text.text_model import TextModel
from benchmarks.peers.environments import quantize
from benchmarks.results import save
from engine.execution.cache import KVCache
from engine.execution.inputs import ModelInputs
from engine.execution.models import Model, load_model
from engine.host import num_cores
from engine.model_files.open_model import open_model
from kernels.cpu.backend import CpuKernels
from kernels.interface import Kernels
from kernels.reference.backend import ReferenceKernels

HOME = Path.home() / ".cache/carousel/peers"
WHEEL, CORPUS = "gensim==4.4.0", "gensim/test/test_data/lee_background.cor"
DOCUMENTS = Path(__file__).parents[1] / "docs"
NEWS_TOKENS, DOCUMENT_TOKENS = 16_000, 4_000
WINDOW, PAGE = 512, 16  # tokens
BITS: dict[str, Any] = {"int8": 8, "int4": 4}
LLAMA_FIGURES = {"kl": r"Mean\s+KLD:\s+([\d.e+-]+)", "perplexity": r"Mean PPL\(Q\)\s*:\s+([\d.]+)"}


@dataclass(frozen=True)
class Variant:
    """Way to compute. cache: dtype of keys and values."""

    name: str
    kernels: Kernels
    cache: torch.dtype


def news() -> str:
    """Return the news, out of the package's wheel, which is downloaded once."""
    folder = HOME / "corpus"
    if not (wheels := list(folder.glob("gensim-*.whl"))):
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), WHEEL]
        subprocess.run(command, check=True)
        wheels = list(folder.glob("gensim-*.whl"))
    with zipfile.ZipFile(wheels[0]) as archive:
        return archive.read(CORPUS).decode("utf-8", errors="replace")


def documents() -> str:
    """Return this project's documents, one after another."""
    return "\n\n".join(file.read_text() for file in sorted(DOCUMENTS.glob("*.md")))


def sample(text: TextModel) -> str:
    """Return the text of the measured tokens."""
    parts = [(news(), NEWS_TOKENS), (documents(), DOCUMENT_TOKENS)]
    return "\n".join(text.decode(text.encode(part, add_special_tokens=False)[:count]) for part, count in parts)


def windows(tokens: list[int]) -> Iterator[list[int]]:
    """Yield the whole windows of a text."""
    for first in range(0, len(tokens) - WINDOW + 1, WINDOW):
        yield tokens[first : first + WINDOW]


class Runner:
    """Model that computes the logits of whole windows."""

    def __init__(self, model: Model, variant: Variant) -> None:
        self._model, self._kernels = model, variant.kernels
        pages = WINDOW // PAGE
        self._cache = KVCache.allocate(pages, PAGE, model.cache_spec(), variant.cache, model.device)
        self._table = torch.arange(pages, dtype=torch.int32).view(1, -1)

    @torch.inference_mode()
    def log_probs(self, tokens: list[int]) -> Tensor:
        """Return the log probabilities after each token of the second half but the last, float32 [T, V]."""
        positions, none = torch.arange(WINDOW), torch.empty((0, WINDOW // PAGE), dtype=torch.int32)
        inputs = ModelInputs(
            token_ids=torch.tensor(tokens),
            positions=positions,
            slot_mapping=positions,
            num_decodes=0,
            decode_page_table=none,
            decode_context_lens=torch.empty(0, dtype=torch.int32),
            prefill_page_table=self._table,
            prefill_query_starts=(0, WINDOW),
            prefill_context_lens=(WINDOW,),
            logit_rows=positions,
        )
        hidden = self._model.forward(inputs, self._cache, self._kernels)
        return self._model.compute_logits(hidden[WINDOW // 2 : WINDOW - 1]).float().log_softmax(-1)


def measure(model: Path, quantization: str | None, tokens: list[int]) -> Iterator[dict[str, Any]]:
    """Yield the figures of each way to compute, and those of the reference."""
    reference = Variant("reference", ReferenceKernels(), torch.float32)
    bits = BITS[quantization] if quantization else None
    label = quantization or "as stored"
    variants = [
        Variant(f"{label}, rows in 8 bits (auto)", CpuKernels(True, bits), torch.bfloat16),
        Variant(f"{label}, rows in 15 bits (float32)", CpuKernels(False, bits), torch.float32),
    ]
    runners = {
        each.name: Runner(
            load_model(open_model(model), torch.float32, torch.device("cpu"), lambda *_: None, kernels=each.kernels),
            each,
        )
        for each in (reference, *variants)
    }
    for each in variants:
        each.kernels.set_threads(num_cores())
    torch.set_num_threads(num_cores())  # of the reference; compiled kernels set it to one
    losses: dict[str, list[float]] = {name: [] for name in runners}
    divergences: dict[str, list[float]] = {name: [] for name in runners}
    for number, window in enumerate(windows(tokens)):
        expected = runners["reference"].log_probs(window)
        targets = torch.tensor(window[WINDOW // 2 + 1 :]).unsqueeze(1)
        for name, runner in runners.items():
            found = expected if name == reference.name else runner.log_probs(window)
            losses[name] += (-found.gather(1, targets).squeeze(1)).tolist()
            divergences[name] += (expected.exp() * (expected - found)).sum(-1).tolist()
        print(f"window {number + 1}", end="\r", flush=True)
    for name in runners:
        perplexity = float(torch.tensor(losses[name], dtype=torch.float64).mean().exp())
        yield {"variant": name, "perplexity": perplexity, "kl": statistics.mean(divergences[name])}


def measure_llama(file: Path, text: str) -> dict[str, Any]:
    """Return the figures of llama-perplexity, against the float32 values of the same file."""
    reference = quantize(HOME, file, "F32")
    folder = HOME / "corpus"
    (folder / "text.txt").write_text(text)
    base = folder / "base.dat"
    common = [str(HOME / "llama/build/bin/llama-perplexity"), "-c", str(WINDOW), "-f", str(folder / "text.txt")]
    common += ["--kl-divergence-base", str(base)]
    subprocess.run([*common, "-m", str(reference)], check=True, capture_output=True)
    done = subprocess.run([*common, "-m", str(file), "--kl-divergence"], check=True, capture_output=True, text=True)
    base.unlink()
    output = done.stdout + done.stderr
    figures = {name: re.search(pattern, output) for name, pattern in LLAMA_FIGURES.items()}
    return {"variant": "llama-perplexity", **{name: float(found[1]) for name, found in figures.items() if found}}


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="GGUF file, or folder")
    parser.add_argument("--quantization", default="", help="of a folder, separated by commas: int8, int4")
    parser.add_argument("--llama", action="store_true", help="measure llama-perplexity with the same file too")
    options = parser.parse_args()
    text = TextModel.load(options.model)
    chosen = sample(text)
    tokens = text.encode(chosen, add_special_tokens=False)
    rows: list[dict[str, Any]] = []
    kinds = options.quantization.split(",") if options.quantization else [None]
    measured = itertools.chain.from_iterable(measure(options.model, kind, tokens) for kind in kinds)
    llama = (measure_llama(options.model, chosen) for _ in range(options.llama))
    for row in itertools.chain(measured, llama):
        rows.append(row)
        print(f"{row['variant']:40} perplexity {row['perplexity']:.4f}  mean KL divergence {row['kl']:.2e}", flush=True)
    settings = {"model": options.model.stem, "tokens": len(tokens), "window": WINDOW}
    print("Saved to", save(f"quality_{options.model.stem.lower()}", settings, rows, {}))


if __name__ == "__main__":
    main()
