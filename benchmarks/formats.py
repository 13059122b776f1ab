"""Formats of answers: their cost, and the validity of the answers.

    python -m benchmarks.formats cost      # tokens per second of 16 streams with and without a format
    python -m benchmarks.formats valid     # 500 generated schemas on a chat model and on a random one
    python -m benchmarks.formats ends      # forced calls and objects of a chat model, which must end by themselves
    python -m benchmarks.formats suite     # the JSON-Schema-Test-Suite, of which jsonschema's source package has a copy

Cost and validity need the default model (`make model`).
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema

from app.generation.request import effective_defaults
from app.text.content_format import ContentFormat, InvalidFormat
from app.text.packaged_model import DEFAULT_MODEL
from app.text.text_model import TextModel
from app.text.tools.answer import AnswerSyntax
from app.text.tools.definitions import Tool, ToolUse
from app.text.tools.formats import format_by_name
from benchmarks.results import save, spread
from benchmarks.schemas import ENDING, generated_schema
from engine.build import build_engine
from engine.config import EngineConfig
from engine.constraints.grammars import GrammarTokenizer
from engine.engine import Engine
from engine.errors import InvalidParameter
from engine.types import FinishReason, Request, SamplingParams, TokenEvent, Vocabulary

STREAMS, OUTPUT = 16, 96
SCHEMAS, MAX_TOKENS = 500, 256
MAX_ENDING_TOKENS = 300
SUITE = "jsonschema==4.26.0"
# An answer that does not end before its limit.
ENDLESS = {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}, "minItems": 10_000}


def grammar(schema: Any) -> str:
    """Return the grammar of an answer with a schema. Raises `InvalidFormat`."""
    hermes = format_by_name("hermes")
    assert hermes is not None
    text = hermes.answer(None, ContentFormat("json_schema", schema, "response_format"), may_reason=False).grammar()
    assert text is not None
    return text


def make_engine(model: Path, text: TextModel, **options: Any) -> Engine:
    """Return an engine that knows the vocabulary."""
    engine = build_engine(EngineConfig(model=str(model), device="cpu", enable_prefix_caching=False, **options))
    engine.use_vocabulary(text.vocabulary())
    return engine


def cost(runs: int) -> None:
    """Measure tokens per second of 16 streams, of which none, one, half or all have a format."""
    model = DEFAULT_MODEL.file
    text = TextModel.load(model)
    engine = make_engine(model, text, max_num_seqs=STREAMS)
    prompt = chat_prompt(text, "List twenty animals with their names.")
    kinds = {"no format": 0, "1 of 16 with a format": 1, "8 of 16": 8, "16 of 16": 16}

    def tokens_per_second(constrained: int, number: int) -> float:
        for i in range(STREAMS):
            sampling = SamplingParams(
                max_tokens=OUTPUT,
                temperature=0.8,
                top_p=0.95,
                seed=i,
                grammar=grammar(ENDLESS) if i < constrained else None,
            )
            engine.submit(Request(id=f"{number}-{i}", prompt=prompt, sampling=sampling))
        began, tokens = time.perf_counter(), 0
        while engine.has_work:
            tokens += sum(isinstance(event, TokenEvent) for event in engine.step())
        assert tokens == STREAMS * OUTPUT, tokens
        return tokens / (time.perf_counter() - began)

    rows: list[dict[str, Any]] = []
    for run in range(-1, runs):  # the first is a warm-up
        rates = {kind: tokens_per_second(count, run) for kind, count in kinds.items()}
        rows += [
            {"run": run, "kind": kind, "tokens_per_second": rate, "of_plain": rate / rates["no format"]}
            for kind, rate in rates.items()
            if run >= 0
        ]
    summary = {}
    for kind in kinds:
        matching = [row for row in rows if row["kind"] == kind]
        summary[kind] = {key: spread([row[key] for row in matching]) for key in ("tokens_per_second", "of_plain")}
        rate, ratio = summary[kind].values()
        print(
            f"{kind:22} {rate['median']:.0f} tokens/s, {ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})"
        )
    waits = first_tokens(engine, prompt)
    summary["first token, ms"] = {kind: spread(values) for kind, values in waits.items()}
    print("first token, ms:", {kind: round(value["median"], 1) for kind, value in summary["first token, ms"].items()})
    settings = {"streams": STREAMS, "output": OUTPUT, "model": model.name, "runs": runs}
    print("Saved to", save("format_cost", settings, rows, summary))


def first_tokens(engine: Engine, prompt: tuple[int, ...]) -> dict[str, list[float]]:
    """Return the milliseconds until the first token of single requests: without a format, with one that was used
    before, and with one that is new.
    """
    waits: dict[str, list[float]] = {"no format": [], "cached format": [], "new format": []}
    for number in range(20):
        formats = {"no format": None, "cached format": ENDLESS, "new format": {**ENDLESS, "description": str(number)}}
        for kind, schema in formats.items():
            text = None if schema is None else grammar(schema)
            began = time.perf_counter()
            request_id = f"{kind} {number}"
            engine.submit(Request(id=request_id, prompt=prompt, sampling=SamplingParams(max_tokens=2, grammar=text)))
            while not any(isinstance(event, TokenEvent) for event in engine.step()):
                pass
            waits[kind].append(1e3 * (time.perf_counter() - began))
            while engine.has_work:
                engine.step()
    return waits


def chat_prompt(text: TextModel, question: str) -> tuple[int, ...]:
    """Return the prompt for a question."""
    return tuple(text.encode(text.render_chat([{"role": "user", "content": question}]), add_special_tokens=False))


def valid(count: int) -> None:
    """Validate the answers of two models to generated schemas with jsonschema."""
    model = DEFAULT_MODEL.file
    text = TextModel.load(model)
    rows, summary = [], {}
    for kind, options in {"chat model": {}, "random weights": {"load_format": "dummy"}}.items():
        engine = make_engine(model, text, max_num_seqs=32, **options)
        found = answers(engine, text, count)
        for number, (schema, answer, finish) in found.items():
            fault = ""
            if finish == FinishReason.STOP:
                try:
                    jsonschema.validate(json.loads(answer), schema)
                except (jsonschema.ValidationError, ValueError) as error:
                    fault = f"{type(error).__name__}: {str(error)[:200]}"
            rows.append({"model": kind, "schema": number, "finish": finish, "fault": fault})
        mine = [row for row in rows if row["model"] == kind]
        finished = [row for row in mine if row["finish"] == FinishReason.STOP]
        summary[kind] = {
            "schemas": len(mine),
            "finished": len(finished),
            "invalid": sum(bool(row["fault"]) for row in finished),
            "cut by length": sum(row["finish"] == FinishReason.LENGTH for row in mine),
            "other": sum(row["finish"] not in (FinishReason.STOP, FinishReason.LENGTH) for row in mine),
        }
        print(kind, summary[kind])
    settings = {"schemas": count, "max_tokens": MAX_TOKENS, "model": model.name}
    print("Saved to", save("format_valid", settings, rows, summary))


def answers(engine: Engine, text: TextModel, count: int) -> dict[int, tuple[Any, str, str]]:
    """Return schema, answer and reason of its end, for each generated schema."""
    schemas = {number: generated_schema(random.Random(number)) for number in range(count)}
    for number, schema in schemas.items():
        question = f"Write an example of JSON that satisfies this schema: {json.dumps(schema)}"
        sampling = SamplingParams(
            max_tokens=MAX_TOKENS,
            temperature=0.7 if number % 2 else 0.0,
            seed=number,
            stop_token_ids=tuple(sorted(text.eos_token_ids)),
            grammar=grammar(schema),
        )
        engine.submit(Request(id=str(number), prompt=chat_prompt(text, question)[-1500:], sampling=sampling))
    tokens, finishes = run(engine)
    return {n: (schema, text.decode(tokens[str(n)]), finishes[str(n)]) for n, schema in schemas.items()}


def ends(count: int) -> None:
    """Generate forced calls and objects as the server does by default, and count those that end by themselves."""
    model = DEFAULT_MODEL.file
    text = TextModel.load(model)
    engine = make_engine(model, text, max_num_seqs=32)
    hermes = format_by_name("hermes")
    assert hermes is not None
    rows: list[dict[str, Any]] = []
    for kind, cases in ENDING.items():
        syntaxes: dict[str, AnswerSyntax] = {}
        for number in range(count):
            question, schema = cases[number % len(cases)]
            use = form = None
            if kind == "forced call":
                use = ToolUse((Tool(**schema),), "required")
            else:
                form = ContentFormat("json_schema", schema, "response_format")
                question += " Answer in JSON."
            syntax = syntaxes[f"{kind} {number}"] = hermes.answer(use, form, may_reason=False)
            tools = use.tools if use is not None else ()
            prompt = text.encode(text.render_chat([{"role": "user", "content": question}], tools=tools))
            sampling = SamplingParams(
                **effective_defaults(text.sampling_defaults),
                max_tokens=MAX_ENDING_TOKENS,
                seed=number,
                stop_token_ids=tuple(sorted(text.eos_token_ids)),
                grammar=syntax.grammar(),
            )
            engine.submit(Request(id=f"{kind} {number}", prompt=tuple(prompt), sampling=sampling))
        tokens, finishes = run(engine)
        for name, syntax in syntaxes.items():
            output = text.decode(tokens[name])
            parser = syntax.parser()
            calls = sum(len(part.calls) for part in parser.push(0, output) + parser.flush()) if parser else 0
            rows.append(
                {"kind": kind, "finish": finishes[name], "tokens": len(tokens[name]), "calls": calls, "text": output}
            )
    summary = {}
    for kind in ENDING:
        mine = [row for row in rows if row["kind"] == kind]
        ended = sum(row["finish"] == FinishReason.STOP for row in mine)
        summary[kind] = {"answers": len(mine), "ended": ended, "tokens": spread([row["tokens"] for row in mine])}
        print(kind, summary[kind])
    settings = {"answers": count, "max_tokens": MAX_ENDING_TOKENS, "model": model.name}
    print("Saved to", save("format_ends", settings, rows, summary))


def run(engine: Engine) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Run all requests. Return the tokens and the reason of the end of each."""
    tokens: dict[str, list[int]] = defaultdict(list)
    finishes: dict[str, str] = {}
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, TokenEvent):
                tokens[event.request_id].append(event.token_id)
            if (finish := getattr(event, "finish", None)) is not None:
                finishes[event.request_id] = finish
    return tokens, finishes


def suite() -> None:
    """Compare the grammars of the suite's schemas with its verdicts."""
    tokenizer = GrammarTokenizer(Vocabulary((b"<eos>", *(bytes([byte]) for byte in range(256))), (0,), (0,)))
    rows: list[dict[str, Any]] = []
    for file, content in suite_files():
        for group in json.loads(content):
            try:
                compiled = tokenizer.compile(grammar(group["schema"]))
            except (InvalidFormat, InvalidParameter) as error:
                rows.append(
                    {"file": file, "group": group["description"], "result": "schema refused", "why": str(error)}
                )
                continue
            for test in group["tests"]:
                text = json.dumps(test["data"], ensure_ascii=False).encode()
                matcher = compiled.deep_copy()
                is_accepted = matcher.try_consume_tokens([1 + b for b in text]) == len(text) and matcher.is_accepting()
                result = {
                    (True, True): "valid and accepted",
                    (False, False): "invalid and refused",
                    (True, False): "valid and refused",
                    (False, True): "invalid and accepted",
                }[test["valid"], is_accepted]
                rows.append(
                    {"file": file, "group": group["description"], "test": test["description"], "result": result}
                )
    results = sorted({row["result"] for row in rows})
    summary = {result: sum(row["result"] == result for row in rows) for result in results}
    print(summary)
    print("Saved to", save("format_suite", {"suite": SUITE, "draft": "2020-12"}, rows, summary))
    if summary.get("invalid and accepted"):
        raise SystemExit("a grammar accepts invalid JSON")


def suite_files() -> list[tuple[str, str]]:
    """Return the suite's files for the newest draft, from the package index."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["download", "--quiet", "--no-deps", "--no-binary", "jsonschema", "--dest", folder, SUITE]
        subprocess.run([sys.executable, "-m", "pip", *command], check=True)
        [archive] = Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as package:
            members = [m for m in package.getmembers() if "/json/tests/draft2020-12/" in m.name and m.isfile()]
            chosen = [m for m in members if m.name.count("/") == 4 and m.name.endswith(".json")]
            return [(Path(m.name).stem, package.extractfile(m).read().decode()) for m in chosen]  # type: ignore[union-attr]


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("cost", "valid", "ends", "suite"))
    parser.add_argument("--runs", type=int, default=5, help="rounds of cost")
    parser.add_argument("--schemas", type=int, default=SCHEMAS, help="schemas of valid")
    parser.add_argument("--answers", type=int, default=40, help="answers of each kind of ends")
    options = parser.parse_args()
    parts: dict[str, Callable[[], None]] = {
        "cost": lambda: cost(options.runs),
        "valid": lambda: valid(options.schemas),
        "ends": lambda: ends(options.answers),
        "suite": suite,
    }
    parts[options.part]()


if __name__ == "__main__":
    main()
