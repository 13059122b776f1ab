"""Engine with a scripted model: the prompt states the answer, and all other parts of the engine are real.

Agents choose their tools themselves (`tool_choice` is `auto`), so that no request can force a call. Their user writes a
directive instead, which the model obeys:

    @call NAME ARGUMENTS   call this tool; ARGUMENTS is a JSON object. After its result, answer with the result.
    @write JSON            answer with this JSON value, as it is written
    @count                 answer with the numbers of earlier answers and results of tools
    @endless               answer until the client disconnects

Without a directive the answer is `DEFAULT_ANSWER`. Prompts and calls are in the Hermes format, which the server uses
for a chat template without tools.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.text.text_model import TextModel
from engine.config import EngineConfig
from engine.constraints.compiler import ConstraintFactory
from engine.engine import Engine
from engine.scheduling.batch import Batch, Sampled, StepOutcome
from engine.scheduling.constraint import NO_TOKEN_ALLOWED, Constraint
from engine.scheduling.costs import Costs
from engine.scheduling.policies import make_policy
from engine.scheduling.scheduler import Scheduler
from engine.types import ModelInfo, Vocabulary

DEFAULT_ANSWER = "The scripted model has answered."
UNREADABLE = "The arguments after the directive are not a JSON object."
COUNTS = "Earlier answers: {answers}; results of tools: {results}."
RESULT_PREFIX = "The tool returned: "
DIRECTIVE = re.compile(
    r"@(?:(?P<endless>endless)\b|(?P<count>count)\b|(?P<write>write) (?=[\[{])|call (?P<name>[\w.-]+) (?=\{))"
)
ANSWER_BEGIN = "<|im_start|>assistant\n"  # the last one of a prompt begins the answer to write
TASK_HEADING = "### Task:\n"  # of Open WebUI, for titles, tags and further questions
RESULT_BEGIN = "<tool_response>\n"
MAX_MODEL_LEN = 131_072  # prompts of agents have up to 40,000 tokens of the small vocabulary
STEP_SECONDS = 0.001
ENDLESS_TEXT = "on and " * 30_000  # lasts for minutes


def scripted_answer(prompt: str) -> str | None:
    """Return the answer to a prompt; None for an endless one.

    A call is made only if the prompt offers tools: agents send the text of their user to a model without tools too, for
    example to make a title of it. Prompts that have the heading of such a task have no directive.
    """
    found = list(DIRECTIVE.finditer(prompt))
    if not found or TASK_HEADING in prompt:
        return DEFAULT_ANSWER
    directive = found[-1]
    if directive["endless"]:
        return None
    if directive["count"]:
        return COUNTS.format(answers=prompt.count(ANSWER_BEGIN) - 1, results=prompt.count(RESULT_BEGIN))
    if directive["write"]:
        return _written_json(prompt, directive.end())
    _, _, result = prompt[directive.end() :].rpartition(RESULT_BEGIN)
    if result and "</tool_response>" in result:
        return RESULT_PREFIX + result.partition("\n</tool_response>")[0]
    if "<tools>" not in prompt:
        return DEFAULT_ANSWER
    try:
        arguments, _ = json.JSONDecoder().raw_decode(prompt, directive.end())
    except ValueError:
        return UNREADABLE
    call = json.dumps({"name": directive["name"], "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def _written_json(prompt: str, begin: int) -> str:
    """Return the text of the JSON value at `begin`."""
    try:
        _, end = json.JSONDecoder().raw_decode(prompt, begin)
    except ValueError:
        return UNREADABLE
    return prompt[begin:end]


class ScriptedRunner:
    """Runner that writes the text of `scripted_answer`: each token is the longest one that continues it and that the
    constraint of its row allows.
    """

    runs_ahead = False
    device_was_idle = True

    def __init__(self, vocabulary: Vocabulary, decode: Callable[[Sequence[int]], str]) -> None:
        """decode: returns the text of a prompt's tokens."""
        self._decode = decode
        self._tokens = vocabulary.tokens
        self._ids = {token: index for index, token in enumerate(vocabulary.tokens)}
        self._end_id = min(vocabulary.eos_ids)
        self._max_length = max(map(len, vocabulary.tokens))
        self._texts: dict[int, bytes] = {}  # by slot: the rest of the answer

    @property
    def max_draft_rows(self) -> int:
        """Return 0: every token is sampled alone."""
        return 0

    def swapped_out(self) -> Callable[[], None]:
        """Return a function that does nothing: pages are moved at once."""
        return lambda: None

    def prefault_pages(self, pages: int) -> bool:
        """Return False: there is no memory to prefault."""
        return False

    def launch(self, batch: Batch) -> Callable[[], StepOutcome]:
        """Sample the next token of each slot."""
        time.sleep(STEP_SECONDS)
        for join in batch.joins:
            answer = scripted_answer(self._decode(join.tokens[: join.prompt_len]))
            written = sum(len(self._tokens[token]) for token in join.tokens[join.prompt_len :])
            self._texts[join.slot] = (answer or ENDLESS_TEXT).encode()[written:]
        constraints = dict(batch.constraints)
        outcome = StepOutcome(tuple(self._sample(slot, constraints.get(slot)) for slot in batch.sampled_slots))
        return lambda: outcome

    def _sample(self, slot: int, constraint: Constraint | None) -> Sampled:
        text = self._texts[slot]
        if not text:
            return Sampled(self._end_id)
        allowed = None if constraint is None else self._allowed(constraint)
        for length in range(self._max_length, 0, -1):
            token = self._ids.get(text[:length])
            if token is not None and (allowed is None or allowed[token]):
                self._texts[slot] = text[len(self._tokens[token]) :]
                return Sampled(token)
        return Sampled(NO_TOKEN_ALLOWED)

    def _allowed(self, constraint: Constraint) -> NDArray[np.uint8]:
        words = np.zeros(-(-len(self._tokens) // 32), np.uint32)
        constraint.write_masks(words.ctypes.data, words.nbytes)
        return np.unpackbits(words.view(np.uint8), bitorder="little")


def build_scripted_engine(config: EngineConfig, progress: Callable[[str, int, int], None]) -> Engine:
    """Return an engine with a scripted model and the vocabulary of the checkpoint `config.model`."""
    text = TextModel.load(Path(config.model))
    vocabulary = text.vocabulary()
    num_pages = 2 * MAX_MODEL_LEN // config.tokens_per_page
    info = ModelInfo(
        name="scripted",
        vocab_size=len(vocabulary.tokens),
        max_model_len=MAX_MODEL_LEN,
        num_pages=num_pages,
        page_size=config.tokens_per_page,
        max_num_seqs=config.max_num_seqs,
        device="cpu",
        dtype="none",
        parameters=0,
    )
    policy = make_policy(config, Costs(swap_pages_per_second=1e9, prefill_tokens_per_second=1e6))
    scheduler = Scheduler(config, policy, num_pages=num_pages, host_pages=0, max_len=MAX_MODEL_LEN)
    progress("weights", 1, 1)
    runner = ScriptedRunner(vocabulary, partial(text.decode, skip_special_tokens=False))
    return Engine(config, info, scheduler, runner, constraints=ConstraintFactory())
