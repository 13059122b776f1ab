"""Cost of grammars of JSON Schemas: time to write and to compile one, and to compute a mask.

    python -m benchmarks.schemas_cost --tokenizer FOLDER

Compares the grammars of `app.text.schemas` with llguidance's own translation (`%json`) of the same schemas.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from app.resources import demo_model
from app.text.content_format import ContentFormat, InvalidFormat
from app.text.schemas.expressions import ESCAPES, JSON_SPACE
from app.text.text_model import TextModel
from benchmarks.hostile_formats import FORMATS
from benchmarks.results import save
from benchmarks.schemas import generated_schema
from engine.constraints.grammars import GrammarTokenizer
from engine.errors import InvalidParameter

MAX_TOKENS = 200
ENDLESS = ("multipleOf", "multipleOf of two primes", "overlapping patterns")  # minutes, if the time is not limited


def theirs(schema: Any) -> str:
    """Return the grammar in which llguidance translates a schema."""
    options = {"whitespace_pattern": JSON_SPACE, "json_allowed_escapes": ESCAPES}
    return "start: %json " + json.dumps({**schema, "x-guidance": options})


def ours(schema: Any) -> str:
    """Return the grammar of a schema in rules of our own."""
    return ContentFormat("json_schema", schema, "response_format").grammars["schema"]


def measure(tokenizer: GrammarTokenizer, write: Callable[[Any], str], schema: Any, ids: list[int]) -> dict[str, Any]:
    """Return milliseconds to write and compile, and microseconds of the mask before each token of a text.

    ids: tokens of the text; if it is empty, a random one is added.
    """
    began = time.perf_counter()
    text = write(schema)
    written = time.perf_counter()
    matcher = tokenizer.compile(text)
    compiled = time.perf_counter()
    rng, masks, given = random.Random(1), [], list(ids)
    while not matcher.is_stopped() and len(masks) < MAX_TOKENS and (given or len(ids) == len(masks)):
        start = time.perf_counter()
        mask = matcher.compute_bitmask()
        masks.append(1e6 * (time.perf_counter() - start))
        allowed = np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little"))
        token = given.pop(0) if given else int(allowed[rng.randrange(len(allowed))])
        if token not in allowed or not matcher.consume_token(token):
            break
        if len(ids) < len(masks):
            ids.append(token)
    return {
        "write_ms": 1e3 * (written - began),
        "compile_ms": 1e3 * (compiled - written),
        "mask_us": statistics.mean(masks),
        "worst_mask_us": max(masks),
        "characters": len(text),
    }


def schemas(count: int) -> dict[str, Any]:
    """Return generated schemas and the large ones of `hostile_formats`, by name."""
    large = {
        name: form["response_format"]["json_schema"]["schema"]
        for name, form in FORMATS.items()
        if "response_format" in form and name not in ENDLESS
    }
    return {str(seed): generated_schema(random.Random(seed)) for seed in range(count)} | {
        name: schema for name, schema in large.items() if isinstance(schema, dict)
    }


def main() -> None:
    """Measure all schemas in both ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, default=demo_model())
    parser.add_argument("--schemas", type=int, default=200)
    options = parser.parse_args()
    tokenizer = GrammarTokenizer(TextModel.load(options.tokenizer).vocabulary())
    rows = []
    for name, schema in schemas(options.schemas).items():
        row: dict[str, Any] = {"schema": name}
        ids: list[int] = []
        for kind, write in {"ours": ours, "theirs": theirs}.items():
            try:
                row[kind] = measure(tokenizer, write, schema, ids)
            except (InvalidFormat, InvalidParameter) as error:
                row[kind] = {"refused": str(error)}
        rows.append(row)
        if not name.isdecimal():
            print(name, {kind: row[kind].get("compile_ms", "refused") for kind in ("theirs", "ours")}, row["ours"])
    both = [row for row in rows if row["schema"].isdecimal() and all("mask_us" in row[k] for k in ("theirs", "ours"))]
    summary: dict[str, Any] = {"schemas": len(both)}
    for key in ("write_ms", "compile_ms", "mask_us", "worst_mask_us", "characters"):
        values = {kind: [row[kind][key] for row in both] for kind in ("theirs", "ours")}
        summary[key] = {kind: {"median": statistics.median(v), "max": max(v)} for kind, v in values.items()}
        ratios = [ours / theirs for theirs, ours in zip(values["theirs"], values["ours"], strict=True)]
        summary[key]["median ratio"] = statistics.median(ratios)
        print(key, summary[key])
    print("Saved to", save("schemas_cost", {"tokenizer": options.tokenizer.name}, rows, summary))


if __name__ == "__main__":
    main()
