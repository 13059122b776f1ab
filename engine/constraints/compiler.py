"""Compilation of grammars in a thread, cached by content."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor

from engine.constraints.constraint import Grammar, GrammarConstraint, ReasoningConstraint
from engine.constraints.grammars import GrammarTokenizer
from engine.constraints.mask_threads import MaskThreads
from engine.errors import InvalidParameter
from engine.host import lower_priority
from engine.scheduling.constraint import Constraint
from engine.types import Request, Vocabulary

MAX_CACHED = 64  # grammars
MAX_CACHED_CHARACTERS = 4 << 20  # of their texts together


class ConstraintFactory:
    """Constraints of requests, with a cache of compiled grammars. All methods are for the engine's thread."""

    def __init__(self) -> None:
        self._vocabulary: Vocabulary | None = None
        self._tokenizer: Future[GrammarTokenizer] | None = None
        self._compiled: OrderedDict[str, Future[Grammar]] = OrderedDict()
        self._masks = MaskThreads()
        self._thread = ThreadPoolExecutor(1, "grammars", lambda: lower_priority(threading.get_native_id()))

    def use_vocabulary(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        """Set the tokens of the model, which each API process sends. vocab_size: number of logits; further ones are no
        tokens.
        """
        padding = (b"",) * (vocab_size - len(vocabulary.tokens))
        padded = Vocabulary((*vocabulary.tokens, *padding), vocabulary.special_ids, vocabulary.eos_ids)
        if padded == self._vocabulary:
            return
        self._vocabulary = padded
        self._tokenizer = self._thread.submit(GrammarTokenizer, self._vocabulary)
        self._compiled.clear()

    def prepare(self, request: Request) -> Future[Grammar] | None:
        """Begin to compile the grammar of a request. Returns None if it has none or it is compiled already."""
        grammar = request.sampling.grammar
        if grammar is None:
            return None
        compiled = self._compile(grammar)
        return None if compiled.done() else compiled

    def constraints(self, request: Request) -> dict[int, Constraint]:
        """Return the constraint of each choice of a request, after its output so far.

        Waits for the compilation of a grammar that `prepare` has not compiled. Raises `InvalidParameter`.
        """
        sampling = request.sampling
        if sampling.grammar is None and sampling.reasoning_limit is None:
            return {}
        grammar = None if sampling.grammar is None else self._compile(sampling.grammar).result()
        constraints: dict[int, Constraint] = {}
        for choice in request.choices:
            constraint: Constraint | None = None if grammar is None else GrammarConstraint(grammar, self._masks)
            if sampling.reasoning_limit is not None:
                if self._vocabulary is None:
                    raise _no_vocabulary("reasoning_limit")
                constraint = ReasoningConstraint(sampling.reasoning_limit, self._vocabulary.tokens, constraint)
            assert constraint is not None
            for token_id in request.output_so_far.get(choice, ()):
                constraint.consume(token_id)
            constraints[choice] = constraint
        return constraints

    def wait_for_masks(self, seconds: float) -> None:
        """Wait until masks of ordinary cost are computed, or for `seconds`."""
        self._masks.wait(seconds)

    def wait_for_any_mask(self, seconds: float) -> None:
        """Wait until one more mask is computed, or for `seconds`."""
        self._masks.wait_for_any(seconds)

    def _compile(self, grammar: str) -> Future[Grammar]:
        """Return the compiled grammar or its compilation, and make it the most recently used one."""
        if self._tokenizer is None:
            raise _no_vocabulary("grammar")
        compiled = self._compiled.get(grammar)
        if compiled is None:
            compiled = self._compiled[grammar] = self._thread.submit(_compile, self._tokenizer, grammar)
        self._compiled.move_to_end(grammar)
        while len(self._compiled) > MAX_CACHED or (
            len(self._compiled) > 1 and sum(map(len, self._compiled)) > MAX_CACHED_CHARACTERS
        ):
            self._compiled.popitem(last=False)
        return compiled


def _compile(tokenizer: Future[GrammarTokenizer], grammar: str) -> Grammar:
    return Grammar(tokenizer.result().compile(grammar), tokenizer.result())


def _no_vocabulary(param: str) -> InvalidParameter:
    return InvalidParameter(f"{param} needs the engine to know the model's vocabulary", param=param)
