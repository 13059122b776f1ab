"""Text model: a checkpoint's tokenizer, chat template and sampling recommendations.

Uses the `tokenizers` library, so that the API process starts fast and never imports torch; `app.text.tokenizer_files`
reads the files. Independent of HTTP.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE

from app.text.chat_template import ChatTemplate, MessagesRefused, join_system_turns
from app.text.control_tokens import ControlTokens, TooManyControlTokens
from app.text.errors import TokenizerError
from app.text.generation_config import AUTO_CONFIG, NO_CONFIG, end_ids, read_config, sampling_defaults
from app.text.tokenizer_files import load_tokenizer
from app.text.tools.default_prompt import default_prompt, text_turns, with_system_text
from app.text.tools.definitions import Tool
from app.text.tools.formats import NO_FORMAT, ToolFormat, find_format, format_by_name
from engine.model_files.errors import ModelFileError
from engine.model_files.interface import Document, ModelFiles
from engine.model_files.open_model import open_model
from engine.types import Vocabulary

AUTO_FORMAT, DEFAULT_FORMAT = "auto", "hermes"  # names of tool formats

# ids; for fewer, decoding is faster than the overhead of the call that releases the interpreter lock
MIN_BATCH_IDS = 4096


class TextModel:
    """Tokenizer and chat template of one checkpoint. Safe to use from several threads."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: str | None,
        special: dict[str, str],
        eos: frozenset[int],
        sampling_defaults: dict[str, float] | None = None,
        allow_control_tokens: bool = False,
        tool_parser: str = AUTO_FORMAT,
    ) -> None:
        """allow_control_tokens: encode control tokens in messages as tokens; otherwise `tokenizer` is changed to encode
        them as plain text. tool_parser: name of the tool format, or that it is found in the template.
        """
        self.tokenizer = tokenizer
        # the checkpoint's recommendations for requests without own values
        self.sampling_defaults = sampling_defaults or {}
        self.eos_token_ids = eos
        self._alone: dict[int, tuple[str, bool]] = {}  # see `alone`
        self._template = ChatTemplate(template, special) if template else None
        self.calls_tools = tool_parser != NO_FORMAT
        self.tool_format = self._find_tool_format(tool_parser)
        self._is_normalized = tokenizer.normalizer is not None
        self._control: ControlTokens | None = None
        if self._template is not None and not allow_control_tokens:
            self._control = ControlTokens(tokenizer, self._template.literal_text)

    @classmethod
    def load(
        cls,
        path: Path,
        chat_template: str | None = None,
        *,
        generation_config: str = AUTO_CONFIG,
        allow_control_tokens: bool = False,
        tool_parser: str = AUTO_FORMAT,
    ) -> TextModel:
        """Load from the files of a model. Raises `TokenizerError` and `InvalidTemplate`.

        chat_template: replaces the checkpoint's own. generation_config: see `app.text.generation_config.read_config`.
        """
        files = open_model(path)
        try:
            tokenizer, special = load_tokenizer(files)
            config, generation = files.config(), read_config(files, generation_config)
            template = chat_template or files.chat_template()
        except ModelFileError as error:
            raise TokenizerError(str(error)) from error
        _check_vocabulary(files, config, tokenizer)
        defaults = {} if generation_config == NO_CONFIG else sampling_defaults(generation)
        eos = _eos((generation, config), tokenizer, special)
        return cls(tokenizer, template, special, eos, defaults, allow_control_tokens, tool_parser)

    @property
    def has_chat_template(self) -> bool:
        """Return whether the model supports conversations."""
        return self._template is not None

    @property
    def reads_tools(self) -> bool:
        """Return whether the chat template writes tools into the prompt."""
        return self._template is not None and self._template.reads_tools

    @property
    def writes_reasoning(self) -> bool:
        """Return whether the chat template knows reasoning before an answer."""
        if self._template is None:
            return False
        return any(tag in self._template.literal_text for tag in self.tool_format.reasoning_tokens)

    def _find_tool_format(self, name: str) -> ToolFormat:
        """Return the tool format with a name, or that of the chat template; Hermes if the template shows none."""
        found = format_by_name(name)
        if found is None and self._template is not None:
            found = find_format(self._template.literal_text, tuple(self.special_texts.values()))
        default = format_by_name(DEFAULT_FORMAT)
        assert default is not None
        return found or default

    def shown_tokens(self, texts: Collection[str]) -> dict[int, str]:
        """Return those special tokens, by id, that have one of these texts."""
        return {token_id: text for token_id, text in self.special_texts.items() if text in texts}

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of `text`; by default with the tokenizer's own additions (such as a begin token)."""
        # The batch call releases the interpreter lock, the single call does not: a long text encoded in a thread would
        # block the event loop anyway. The fast variant returns the same ids without offsets.
        ids: list[int] = (
            self._tokenizer_of(text).encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        )
        return ids

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of `text` without creating a list of them."""
        return len(self._tokenizer_of(text).encode_batch_fast([text], add_special_tokens=False)[0])

    def _tokenizer_of(self, text: str) -> Tokenizer:
        """Return the tokenizer that reads sealed control tokens as plain text, if `text` has any."""
        return self._control.tokenizer if self._is_sealed(text) and self._control is not None else self.tokenizer

    def _is_sealed(self, text: str) -> bool:
        return self._control is not None and self._control.is_sealed(text)

    def min_tokens(self, text: str) -> int:
        """Return a lower bound of the number of tokens of `text`, in a fraction of the time to tokenize it; 0 if
        unknown.
        """
        if self._longest_token is None:
            return 0
        if self._is_normalized or self._is_sealed(text):
            return 0  # the normalized length counts, and computing it holds the interpreter lock
        return len(text) // self._longest_token

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `token_ids`."""
        ids = list(token_ids)
        if len(ids) < MIN_BATCH_IDS:
            return str(self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))
        # batch call as in `encode`
        return str(self.tokenizer.decode_batch([ids], skip_special_tokens=skip_special_tokens)[0])

    def render_chat(
        self,
        messages: Sequence[dict[str, Any]],
        variables: Mapping[str, Any] | None = None,
        *,
        tools: Sequence[Tool] = (),
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """Return the text of a conversation for `encode`, ready for an answer, or for the continuation of its last
        message.

        variables: see `ChatTemplate.render`. tools: those that the answer may call; a template that does not read them
        gets a system message instead, and calls and results as text. For a template that refuses several system
        messages they are joined. Raises `MessagesRefused` if the template does not accept the conversation, and
        `ReservedVariable`.
        """
        template = self._template
        if template is None:
            raise MessagesRefused("this model has no chat template; use /v1/completions")

        forms = [tool.template_form() for tool in tools]
        if not template.reads_tools:
            messages, forms = text_turns(messages), []
            if tools:
                messages = with_system_text(messages, default_prompt(tools))

        def render(
            messages: Sequence[dict[str, Any]],
            variables: Mapping[str, Any] | None,
            tools: Sequence[dict[str, Any]] = forms,
        ) -> str:
            if continue_final_message:
                return template.render_open(messages, variables, tools=tools)
            return template.render(messages, variables, tools=tools, add_generation_prompt=add_generation_prompt)

        def render_joined(*arguments: Any) -> str:
            try:
                return render(*arguments)
            except MessagesRefused:
                joined = join_system_turns(arguments[0])
                if len(joined) == len(arguments[0]):
                    raise
            return render(joined, *arguments[1:])

        if self._control is None:
            return render_joined(messages, variables)
        try:
            marked = self._control.wrap_tokens(messages, variables, forms)
        except TooManyControlTokens as error:
            raise MessagesRefused(str(error)) from None
        if marked is None:
            return render_joined(messages, variables)
        try:
            return self._control.insert_breaks(render_joined(*marked))
        except MessagesRefused as error:
            raise MessagesRefused(self._control.unwrap(str(error))) from error

    def decode_single(self, token_id: int) -> tuple[str, bool]:
        """Return the text of one token, and whether it adds exactly that text after any whole characters."""
        found = self._alone.get(token_id)
        if found is None:
            text = self.decode([token_id])
            # A byte-level decoder concatenates the bytes of tokens, so only incomplete characters can join.
            is_whole = "\ufffd" not in text and isinstance(self.tokenizer.decoder, ByteLevel)
            found = self._alone[token_id] = text, is_whole
        return found

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token; those of consecutive tokens make up the text, except for a space that some
        decoders omit at the beginning of a text.
        """
        token = self.tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if self._is_byte_level and all(c in _BYTE_OF_CHAR for c in token):
            return bytes(_BYTE_OF_CHAR[c] for c in token)
        if self.has_byte_fallback and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(byte[1])
        first, both = (self.decode([token_id] * times, skip_special_tokens=False) for times in (1, 2))
        return both.removeprefix(first).encode()

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 of the tokens and their ids, in hexadecimal digits."""
        vocabulary = sorted(self.tokenizer.get_vocab().items())  # each process has another order
        return hashlib.sha256(repr(vocabulary).encode("utf-8", "surrogatepass")).hexdigest()

    @cached_property
    def special_texts(self) -> dict[int, str]:
        """Return the text of each control token, which `decode` leaves out by default."""
        added = self.tokenizer.get_added_tokens_decoder().items()
        return {token_id: token.content for token_id, token in added if token.special}

    def vocabulary(self) -> Vocabulary:
        """Return the bytes of all tokens, for constraints. Takes a few microseconds per token."""
        size = self.tokenizer.get_vocab_size(with_added_tokens=True)
        highest = max(self.tokenizer.get_vocab(with_added_tokens=True).values(), default=size - 1)
        tokens = tuple(self.token_bytes(token_id) for token_id in range(highest + 1))
        return Vocabulary(tokens, tuple(sorted(self.special_texts)), tuple(sorted(self.eos_token_ids)))

    def may_continue_character(self, token_id: int) -> bool:
        """Return whether its bytes may continue a character that earlier tokens began; it may also have no text."""
        return not self.decode_single(token_id)[0] or b"\x80" <= self.token_bytes(token_id)[:1] < b"\xc0"

    @cached_property
    def _longest_token(self) -> int | None:
        """Return the length of the longest token in characters. None: a token may represent any number of them, such as
        one for unknown words, or one that absorbs adjacent spaces.
        """
        added = self.tokenizer.get_added_tokens_decoder().values()
        if not isinstance(self.tokenizer.model, BPE) or not isinstance(self.tokenizer.decoder, ByteLevel):
            return None
        if any(token.lstrip or token.rstrip for token in added):
            return None
        # Vocabulary entries have one character per byte, and a text has no more characters than bytes.
        return max(map(len, self.tokenizer.get_vocab()))

    @cached_property
    def _is_byte_level(self) -> bool:
        return "ByteLevel" in repr(self.tokenizer.decoder)

    @cached_property
    def has_byte_fallback(self) -> bool:
        """Return whether characters without their own token are encoded as byte tokens."""
        return "ByteFallback" in repr(self.tokenizer.decoder)


def _eos(configs: tuple[Document, Document], tokenizer: Tokenizer, special: dict[str, str]) -> frozenset[int]:
    """Return every id that ends a text: those of the first of `configs` (generation_config.json, config.json) that
    names any; and the tokenizer's own (as in vLLM), because models trained for chat often name their end token only
    there.
    """
    given = configs[-1].content.get("vocab_size")
    vocab_size = given if isinstance(given, int) else 2**31
    ids = end_ids(configs, vocab_size)
    own = tokenizer.token_to_id(special.get("eos_token", ""))
    return frozenset(ids if own is None or own >= vocab_size else [*ids, own])


def _check_vocabulary(files: ModelFiles, config: Document, tokenizer: Tokenizer) -> None:
    """Raise `TokenizerError` for a tokenizer of another model: its ids would be refused, or would mean other tokens.

    Added tokens may lie beyond the model's vocabulary: fine-tunes leave a padding token there that no text contains.
    """
    vocab_size = config.content.get("vocab_size")
    if not isinstance(vocab_size, int):
        return
    added = set(tokenizer.get_added_tokens_decoder())
    largest = max((i for i in tokenizer.get_vocab(with_added_tokens=True).values() if i not in added), default=-1)
    try:
        largest = max(largest, *tokenizer.encode("Hello").ids, -1)
    except Exception as error:  # the library raises plain Exception
        raise TokenizerError(f"{files.path}: the tokenizer cannot encode a text: {error}") from error
    if largest >= vocab_size:
        raise TokenizerError(
            f"{files.path}: the tokenizer has token ids up to {largest}, and config.json has vocab_size = "
            f"{vocab_size}: it is the tokenizer of another model"
        )


def _byte_of_char() -> dict[str, int]:
    """Return the byte for each of GPT-2's printable substitutes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTE_OF_CHAR = _byte_of_char()
_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")
