"""Between text and tokens: what a checkpoint's tokenizer, chat template and recommendations say.

Uses the `tokenizers` library, so the API process starts fast and never imports torch; transformers is asked only where
a checkpoint has no tokenizer.json. Knows nothing of HTTP.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE

from app.chat_template import ChatTemplate, TemplateBroken, TemplateRefused

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
# Files of which transformers makes a tokenizer; where there is none of them it makes an empty one.
VOCABULARIES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.json", "vocab.txt", "*.tiktoken")
# What a checkpoint may recommend, from and to: as requests may ask for.
SAMPLING = {
    "temperature": (0.0, 2.0),
    "top_p": (1e-9, 1.0),
    "top_k": (-1, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-6, 10.0),
}


class TokenizerMissing(Exception):
    """The checkpoint has no tokenizer that could be loaded; the message names the folder."""


class TextModel:
    """Tokenizer and chat template of one checkpoint. Safe to use from several threads."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: str | None,
        special: dict[str, str],
        eos: frozenset[int],
        sampling_defaults: dict[str, float] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.sampling_defaults = sampling_defaults or {}  # what the checkpoint recommends where a request is silent
        self.eos_token_ids = eos
        self._alone: dict[int, tuple[str, bool]] = {}  # see `alone`
        self._template = ChatTemplate(template, special) if template else None

    @classmethod
    def load(cls, path: Path, chat_template: str | None = None) -> TextModel:
        """From a folder in Hugging Face layout. `chat_template` replaces the checkpoint's own."""
        config = _read_json(path / "tokenizer_config.json")
        named = _read_json(path / "special_tokens_map.json") | {name: value for name, value in config.items() if value}
        special = {name: _content(path, name, named[name]) for name in SPECIAL_NAMES if named.get(name)}
        tokenizer = _load_tokenizer(path)
        template = chat_template or _find_template(path, config)
        return cls(tokenizer, template, special, _eos(path, tokenizer, special), _sampling_defaults(path))

    @property
    def has_chat_template(self) -> bool:
        """Whether the model can be talked to in turns."""
        return self._template is not None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; by default with what the tokenizer puts around every text (such as a begin token)."""
        # The batch call gives up the interpreter lock while it works, the single one does not: a long text encoded in a
        # thread would stop the event loop all the same.
        return list(self.tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0].ids)

    def least_tokens(self, text: str) -> int:
        """As many tokens as `text` has at the least, in a fraction of the time that it takes to find them; 0 where that
        cannot be told."""
        if self._longest_token is None:
            return 0
        normalizer = self.tokenizer.normalizer
        length = len(text) if normalizer is None else len(normalizer.normalize_str(text))
        return length // self._longest_token

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of all of `token_ids`."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def render_chat(
        self,
        messages: Sequence[dict[str, Any]],
        variables: Mapping[str, Any] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """The text of a conversation, ready for an answer, or for more of the answer that is its last message.
        variables: see `ChatTemplate.render`. Raises `TemplateRefused` when the template does not take it, and
        `VariableTaken`."""
        if self._template is None:
            raise TemplateRefused("this model has no chat template; use /v1/completions")
        if continue_final_message:
            return self._template.render_open(messages, variables)
        return self._template.render(messages, variables, add_generation_prompt=add_generation_prompt)

    def alone(self, token_id: int) -> tuple[str, bool]:
        """The text of one token, and whether it adds just that to any whole characters before it."""
        found = self._alone.get(token_id)
        if found is None:
            text = self.decode([token_id])
            # A byte-level decoder joins what each token stands for: only bytes that are no characters yet can join.
            is_whole = "\ufffd" not in text and isinstance(self.tokenizer.decoder, ByteLevel)
            found = self._alone[token_id] = text, is_whole
        return found

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for; together with its neighbours' they make up the text, but for a space that
        some decoders leave out where a text begins."""
        token = self.tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if self._is_byte_level and all(c in _BYTE_OF_CHAR for c in token):
            return bytes(_BYTE_OF_CHAR[c] for c in token)
        if self.falls_back_on_bytes and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(byte[1])
        first, both = (self.decode([token_id] * times, skip_special_tokens=False) for times in (1, 2))
        return both.removeprefix(first).encode()

    def goes_on(self, token_id: int) -> bool:
        """Whether its text may be the rest of a character that tokens before it began; it may have none at all."""
        return not self.alone(token_id)[0] or b"\x80" <= self.token_bytes(token_id)[:1] < b"\xc0"

    @cached_property
    def _longest_token(self) -> int | None:
        """In characters. None: a token may stand for any number of them, such as one for unknown words, or one that
        takes the spaces beside it."""
        added = self.tokenizer.get_added_tokens_decoder().values()
        if not isinstance(self.tokenizer.model, BPE) or not isinstance(self.tokenizer.decoder, ByteLevel):
            return None
        if any(token.lstrip or token.rstrip for token in added):
            return None
        # Written with a character for each byte, and a text has no more characters than bytes.
        return max(map(len, self.tokenizer.get_vocab()))

    @cached_property
    def _is_byte_level(self) -> bool:
        return "ByteLevel" in repr(self.tokenizer.decoder)

    @cached_property
    def falls_back_on_bytes(self) -> bool:
        """Whether characters that have no token of their own are said as bytes, one token each."""
        return "ByteFallback" in repr(self.tokenizer.decoder)


def _load_tokenizer(path: Path) -> Tokenizer:
    tokenizer = _read_tokenizer(path)
    # What was saved with it for training says nothing of a request: its whole text is what it is about.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read_tokenizer(path: Path) -> Tokenizer:
    if (path / "tokenizer.json").exists():
        try:
            return Tokenizer.from_file(str(path / "tokenizer.json"))
        except Exception as error:  # the library raises plain Exception
            raise TokenizerMissing(f"{path / 'tokenizer.json'} cannot be read: {error}") from error
    if not any(file for pattern in VOCABULARIES for file in path.glob(pattern)):
        raise TokenizerMissing(f"{path} has no tokenizer.json, and no {', '.join(VOCABULARIES)} to make one from")
    try:
        from transformers import AutoTokenizer

        made = AutoTokenizer.from_pretrained(str(path), trust_remote_code=False)  # and nobody is asked whether to
        return made.backend_tokenizer  # type: ignore[no-any-return]
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise TokenizerMissing(f"{path} has no tokenizer.json, and transformers cannot make one: {reason}") from error


def _find_template(path: Path, config: dict[str, Any]) -> str | None:
    file = path / "chat_template.jinja"
    if file.exists():
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise TemplateBroken(f"{file}: {error}") from None
    template = config.get("chat_template")
    try:
        if isinstance(template, list):  # several named ones
            template = {entry["name"]: entry["template"] for entry in template}
        if isinstance(template, dict):
            template = template.get("default")
        if not isinstance(template, str | None):
            raise TypeError
    except (KeyError, TypeError):
        raise TemplateBroken(
            f"{path / 'tokenizer_config.json'}: chat_template must be a text or a list of named ones, "
            f"not {config['chat_template']!r:.80}"
        ) from None
    return template


def _eos(path: Path, tokenizer: Tokenizer, special: dict[str, str]) -> frozenset[int]:
    """Every id that ends a text: what generation_config.json says, else config.json; and the tokenizer's own (as in
    vLLM): who trains a model to speak in turns often names its end there alone."""
    vocab_size = _read_json(path / "config.json").get("vocab_size")
    known = vocab_size if isinstance(vocab_size, int) else 2**31
    for name in ("generation_config.json", "config.json"):
        value = _read_json(path / name).get("eos_token_id")
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        for token_id in ids:
            if type(token_id) is not int or not 0 <= token_id < known:
                raise TokenizerMissing(f"{path / name}: eos_token_id {token_id!r} is no id of a token")
        break
    else:
        ids = []
    own = tokenizer.token_to_id(special.get("eos_token", ""))
    return frozenset(ids if own is None or own >= known else [*ids, own])


def _sampling_defaults(path: Path) -> dict[str, float]:
    """The sampling parameters of generation_config.json, as vLLM honours them."""
    file = path / "generation_config.json"
    config = _read_json(file)
    values = {name: config[name] for name in SAMPLING if config.get(name) is not None}
    for name, value in values.items():
        least, most = SAMPLING[name]
        kinds = int if name == "top_k" else int | float
        if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
            raise TokenizerMissing(f"{file}: {name} must lie in [{least:g}, {most:g}], not {value!r}")
    return values | ({"top_k": max(0, values["top_k"])} if "top_k" in values else {})


def _content(path: Path, name: str, token: Any) -> str:
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str):
        raise TokenizerMissing(
            f"{path / 'tokenizer_config.json'}: {name} must be a text or an object with its content, not {token!r:.80}"
        )
    return text


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes()) if path.exists() else {}
    except ValueError as error:
        raise TokenizerMissing(f"{path}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise TokenizerMissing(f"{path}: not a JSON object")
    return content


def _byte_of_char() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes, reversed."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTE_OF_CHAR = _byte_of_char()
_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")
