"""An evaluation harness (lm-eval) on a server and on transformers: the same log-likelihoods.

Both read a checkpoint with the values of the default model in float32, since the products of its GGUF file are rounded.
Its `local-completions` model reads log-probabilities of echoed prompts; its `hf` model computes them in transformers.
The task is made of local data. The harness is installed into a folder outside of the tree.

    make model && python -m benchmarks.harness
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import torch

from app.text.packaged_model import DEFAULT_MODEL
from benchmarks.results import save
from benchmarks.serving import Serving
from tests.packaged_models import write_checkpoint

PACKAGES = ("lm-eval[api]==0.4.13",)
WITHOUT_DEPENDENCIES = ("accelerate==1.15.0",)  # which only its `hf` model imports; torch is this environment's
TOLERANCE = 1e-3
QUESTIONS = (
    ("The capital of France is", "Paris", "Berlin"),
    ("Two plus two is", "four", "seven"),
    ("The sky on a clear day is", "blue", "green"),
    ("Water freezes at zero degrees", "Celsius", "Fahrenheit"),
    ("The opposite of hot is", "cold", "warm"),
    ("A dog is an", "animal", "engine"),
    ("The sun rises in the", "east", "west"),
    ("Fish live in the", "water", "sky"),
    ("A week has seven", "days", "months"),
    ("Snow is", "white", "black"),
    ("The largest planet of the solar system is", "Jupiter", "Mercury"),
    ("Bees make", "honey", "milk"),
)
TASK = """\
task: local_choices
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: gold
metric_list:
  - metric: acc
"""


def environment() -> Path:
    """Return the Python of an environment with the harness; made once."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "carousel" / "harness"
    python, done = folder / "bin" / "python", folder / "installed"
    wanted = "\n".join((*PACKAGES, *WITHOUT_DEPENDENCIES))
    if not done.exists() or done.read_text() != wanted:
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *PACKAGES], check=True)
        subprocess.run([*pip, "--no-deps", *WITHOUT_DEPENDENCIES], check=True)
        done.write_text(wanted)
    return python


def run(python: Path, folder: Path, model: str, arguments: dict[str, Any]) -> list[tuple[float, bool]]:
    """Return the log-likelihood of each continuation, and whether it is the greedy one."""
    data, output = folder / "data.jsonl", folder / model
    rows = [{"question": question, "choices": choices, "gold": 0} for question, *choices in QUESTIONS]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "local_choices.yaml").write_text(TASK.format(data=data))
    packages = str(Path(torch.__file__).parent.parent)  # torch and transformers, after the harness's own packages
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder), "PYTHONPATH": packages}
    given = ",".join(f"{key}={value}" for key, value in arguments.items())
    options = ["--model", model, "--model_args", given, "--tasks", "local_choices", "--include_path", str(folder)]
    more = ["--output_path", str(output), "--log_samples", "--device", "cpu"]
    subprocess.run([str(python), "-m", "lm_eval", *options, *more], check=True, env=os.environ | offline)
    [samples] = output.glob("**/samples_*.jsonl")
    found = sorted((json.loads(line) for line in samples.read_text().splitlines()), key=lambda row: row["doc_id"])
    return [(float(value), greedy == "True") for row in found for [[value, greedy]] in row["resps"]]


def main() -> None:
    """Run both, compare, print and save."""
    python, options = environment(), ("--dtype", "float32", "--kv-cache-dtype", "float32")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, DEFAULT_MODEL.name)
        folder.mkdir()
        write_checkpoint(DEFAULT_MODEL.file, folder)
        with Serving(*options, model=str(folder)) as server:
            served = {
                "model": DEFAULT_MODEL.name,
                "base_url": f"{server.url}/v1/completions",
                "tokenizer": folder,
                "tokenizer_backend": "huggingface",
                "num_concurrent": 4,
            }
            ours = run(python, Path(temporary), "local-completions", served)
        theirs = run(python, Path(temporary), "hf", {"pretrained": folder, "dtype": "float32"})
    rows = [{"ours": a, "theirs": b, "is_greedy": greedy} for (a, greedy), (b, _) in zip(ours, theirs, strict=True)]
    largest = max(abs(row["ours"] - row["theirs"]) for row in rows)
    is_same = [greedy for _, greedy in ours] == [greedy for _, greedy in theirs]
    summary = {"continuations": len(rows), "largest difference": largest, "same greedy flags": is_same}
    print(summary)
    print("Saved to", save("harness", {"packages": PACKAGES, "model": DEFAULT_MODEL.name}, rows, summary))
    if largest > TOLERANCE or not is_same:
        sys.exit(f"the log-likelihoods differ by more than {TOLERANCE}")


if __name__ == "__main__":
    main()
