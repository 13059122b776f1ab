"""Child process that builds a checkpoint's tokenizer with transformers and writes it as JSON.

Run as a script, so that neither transformers nor anything it imports is loaded into the API process. Its one argument
is a folder in Hugging Face layout; its output is `{"tokenizer": ..., "special": ...}` or `{"error": ...}`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

SAMPLE = "The words of a text, and  two spaces."


def convert(folder: str) -> dict[str, Any]:
    """Return the tokenizer that AutoTokenizer makes of `folder`, serialized, and its named special tokens."""
    from transformers import AutoTokenizer, LlamaTokenizer, logging

    logging.set_verbosity_error()
    options = {"local_files_only": True, "trust_remote_code": False}
    made = AutoTokenizer.from_pretrained(folder, **options)
    pieces = Path(folder, "tokenizer.model")
    if pieces.exists() and not Path(folder, "tokenizer.json").exists() and not _agrees(made, pieces):
        # For some families transformers 5 omits the space that the model puts before a text.
        other = LlamaTokenizer.from_pretrained(folder, **options)
        made = other if _agrees(other, pieces) else made
    backend = getattr(made, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(f"{type(made).__name__} has no form that the tokenizers package can run")
    return {"tokenizer": backend.to_str(), "special": dict(made.special_tokens_map)}


def _agrees(made: Any, pieces: Path) -> bool:
    """Return whether a tokenizer has the ids of the sentencepiece model that it was made from."""
    from sentencepiece import SentencePieceProcessor

    try:
        expected = SentencePieceProcessor(model_file=str(pieces)).encode(SAMPLE)
    except RuntimeError:  # a tiktoken file has the same name
        return True
    return bool(made.encode(SAMPLE, add_special_tokens=False) == expected)


def main(folder: str) -> None:
    """Write the result of `convert`, or its error, to standard output."""
    # Tokenizers need no torch, and importing it takes longer than all the rest.
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        result = convert(folder)
    except Exception as error:  # transformers raises many types for unreadable files
        lines = str(error).strip().splitlines()
        result = {"error": lines[0] if lines else type(error).__name__}
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
