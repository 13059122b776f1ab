"""Log-probabilities of texts on a real model, as evaluation harnesses read them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from app.resources import root
from app.text.text_model import TextModel
from engine.types import PromptEvent, Request, SamplingParams
from tests.engine.same import make_engine
from tests.profiles import NIGHTLY, PROFILE

TEXTS = 50 if PROFILE == NIGHTLY else 12


def texts() -> list[str]:
    """Return the first paragraphs of this project's documentation, of different lengths."""
    paragraphs = [" ".join(part.split()) for part in (root() / "docs" / "architecture.md").read_text().split("\n\n")]
    return [part[: 60 + 17 * (i % 20)] for i, part in enumerate(p for p in paragraphs if len(p) > 60)][:TEXTS]


@pytest.mark.model
def test_log_probabilities_equal_those_of_transformers(chat_checkpoint: Path):
    """To a thousandth, in float32 with keys and values that are not rounded."""
    from transformers import AutoModelForCausalLM

    text = TextModel.load(chat_checkpoint)
    prompts = [text.encode(each) for each in texts()]
    prompts += [text.encode(f"{number} times {number} is {number * number}.") for number in range(TEXTS - len(prompts))]
    assert len(prompts) == TEXTS
    engine = make_engine(chat_checkpoint, kv_cache_dtype="float32", max_num_seqs=8)
    found: dict[str, list[float]] = {str(i): [0.0] * (len(prompt) - 1) for i, prompt in enumerate(prompts)}
    for i, prompt in enumerate(prompts):
        engine.submit(
            Request(id=str(i), prompt=tuple(prompt), sampling=SamplingParams(max_tokens=1, prompt_logprobs=0))
        )
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, PromptEvent):
                values = [token.logprob for token in event.tokens]
                found[event.request_id][event.start - 1 : event.start - 1 + len(values)] = values
    model = AutoModelForCausalLM.from_pretrained(chat_checkpoint, dtype=torch.float32)
    for i, prompt in enumerate(prompts):
        with torch.no_grad():
            log_probs = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
        expected = log_probs[:-1].gather(1, torch.tensor(prompt[1:]).unsqueeze(1)).squeeze(1)
        assert found[str(i)] == pytest.approx(expected.tolist(), abs=1e-3)
