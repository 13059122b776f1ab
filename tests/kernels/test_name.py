"""transformers looks for an optional package `kernels`; ours must not be mistaken for it."""

from __future__ import annotations

from pathlib import Path

from tests.kernels.test_interface import run

SETUP = """
import sys, warnings
sys.path.insert(0, {root!r})
import kernels
assert kernels.__file__.startswith({root!r})
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
"""

SAVE = """
tokenizer = Tokenizer(models.WordLevel({{"a": 0, "b": 1, "[UNK]": 2}}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained({directory!r})
config = LlamaConfig(
    vocab_size=3, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, eos_token_id=None
)
LlamaForCausalLM(config).save_pretrained({directory!r})
"""

LOAD = """
tokenizer = AutoTokenizer.from_pretrained({directory!r})
model = AutoModelForCausalLM.from_pretrained({directory!r})
ids = tokenizer("a b", return_tensors="pt").input_ids
out = model.generate(ids, attention_mask=ids >= 0, max_new_tokens=2, pad_token_id=0)
assert out.shape == (1, 4), out
"""


def test_transformers_loads_and_runs_from_a_checkout(tmp_path: Path):
    """With the checkout first on sys.path, transformers loads a tokenizer and a model and generates."""
    root = str(Path(__file__).resolve().parents[2])
    code = (SETUP + SAVE + LOAD).format(root=root, directory=str(tmp_path))
    # Only warnings caused by our package's name matter here, not transformers' own.
    run("import warnings; warnings.filterwarnings('default')\n" + code)
