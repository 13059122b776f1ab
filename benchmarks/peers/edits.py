"""Edits of files on this server and llama-server or vLLM, with several tokens a step and with one.

    make model && python -m benchmarks.peers.edits              # builds llama-server first
    python -m benchmarks.peers.edits --own-text                 # a text that the model repeats by itself
    python -m benchmarks.peers.edits --vllm                     # beside vLLM in place of llama-server
    python -m benchmarks.peers.edits --streams 1 --rounds 1     # a short trial

Both serve the same GGUF file, or with --vllm its weights in bfloat16, and get the same tokens over HTTP: a file as the
prompt, and as the answer the file after a commit, of which they say the first --tokens. A grammar that allows one text
makes the model say it, in Lark's syntax and in GBNF, and for vLLM it is the only choice; on this server no draft comes
from the grammar. Servers that are not being measured are frozen. Drafts come from the own text alone: prefix caches are
off, no earlier answer is asked (`unforced.py`), and of the kinds of speculation that the others have those are measured
that remember no other request (`ngram-mod` does).

A grammar makes llama-server slow, as it looks at the whole vocabulary for each token that the model would not have
said. With --own-text the model repeats a text of its prompt, and no server has a grammar.

Tokens are those of the texts in the model's tokenizer. They count from the moment at which all streams have begun to
answer until the last one ends. llama-server needs the machine for itself: beside other work its threads wait for each
other, and its speed falls to a tenth.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.text.packaged_model import DEFAULT_MODEL
from app.text.text_model import TextModel
from benchmarks.peers.environments import setup_llama, setup_vllm
from benchmarks.peers.load import events
from benchmarks.peers.servers import Server, Watch
from benchmarks.peers.servers import vllm as vllm_server
from benchmarks.peers.unpacked import unpack
from benchmarks.results import save, spread
from benchmarks.speculation_texts import Case, cases
from benchmarks.sse_client import Part, receive, run

HOME = Path.home() / ".cache/carousel/peers"
EDITS = "edit, whole file"
REPEATED = "repeated text"
ROUNDS = {1: 3, 4: 3, 16: 1}  # by the number of streams; one with 16 takes a quarter of an hour
PROMPT = 1280  # tokens, at most
TOKENS = 400  # of an answer, at most
REST = 0.5  # seconds between thawing a server and measuring it
TIMEOUT = 1800.0  # seconds of one run
OURS = {"carousel": "auto", "carousel, one token a step": "off"}  # values of --speculation
SHORT = "--spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 7"  # drafts as long as those of this server
LLAMA = {  # options of llama-server
    "llama-server, one token a step": "",
    "llama-server, ngram-simple": "--spec-type ngram-simple",
    "llama-server, ngram-simple of 7": f"--spec-type ngram-simple {SHORT}",
    "llama-server, ngram-map-k": "--spec-type ngram-map-k",
}
NGRAMS = {"method": "ngram", "prompt_lookup_min": 2}
VLLM = {  # values of --speculative-config of vLLM; None: none
    "vllm, one token a step": None,
    "vllm, ngram of 7": NGRAMS | {"prompt_lookup_max": 5, "num_speculative_tokens": 7},
    "vllm, ngram of 3": NGRAMS | {"prompt_lookup_max": 5, "num_speculative_tokens": 3},
}
Fields = Callable[[str | None], dict[str, Any]]


@dataclass(frozen=True)
class Edit:
    """A request: tokens of the prompt, and the text that the model is made to say; None: its own."""

    prompt: list[int]
    answer: str | None


@dataclass(frozen=True)
class Peer:
    """Running server. fields: of a request, for the only text that is allowed, if one is given."""

    server: Server
    fields: Fields


@dataclass(frozen=True)
class Reply:
    """Answer of a server. pieces: with their moments, in seconds after the start. last: fields of the last event."""

    pieces: list[tuple[float, str]]
    last: dict[str, Any]

    def is_of(self, answer: str | None) -> bool:
        """Return whether the text is the answer, or its beginning if it ended at the limit of its tokens."""
        if answer is None:
            return True
        is_cut = self.last["choices"][0]["finish_reason"] == "length"
        return answer.startswith(self.text) if is_cut else answer == self.text

    @property
    def text(self) -> str:
        """Return the whole text."""
        return "".join(piece for _, piece in self.pieces)

    def share_after(self, moment: float) -> float:
        """Return the share of the characters that arrived after a moment."""
        return sum(len(piece) for at, piece in self.pieces if at > moment) / len(self.text)


def lark(answer: str | None) -> dict[str, Any]:
    """Return the fields of a request to this server. The recommended penalty would change how the text is divided."""
    if answer is None:
        return {"repetition_penalty": 1.0}
    return {"structured_outputs": {"grammar": f"start: {json.dumps(answer)}"}, "repetition_penalty": 1.0}


def gbnf(answer: str | None) -> dict[str, Any]:
    """Return the fields of a request to llama-server."""
    if answer is None:
        return {"cache_prompt": False}
    return {"grammar": f"root ::= {json.dumps(answer)}", "cache_prompt": False}


def carousel(model: Path, log: Path, speculation: str, streams: int) -> Peer:
    """Start this server. speculation: auto or off."""
    entry = [
        sys.executable,
        "-m",
        "benchmarks.peers.unforced",
        "serve",
        str(model),
        "--port",
        "PORT",
        "--store",
        "none",
    ]
    options = ["--served-model-name", "model", "--max-num-seqs", str(streams), "--no-enable-prefix-caching"]
    return Peer(Server([*entry, *options, "--speculation", speculation], {}, log, lambda prompt, length: {}), lark)


def llama(model: Path, log: Path, options: str, streams: int, tokens: int) -> Peer:
    """Start llama-server with a slot for each stream, on all cores."""
    slots = ["-np", str(streams), "-c", str(streams * (PROMPT + tokens)), "-t", str(os.cpu_count() or 1)]
    command = [str(HOME / "llama/build/bin/llama-server"), "-m", str(model), "--port", "PORT", *slots, "--kv-unified"]
    return Peer(Server([*command, "--cache-ram", "0", *options.split()], {}, log, lambda prompt, length: {}), gbnf)


def choice(answer: str | None) -> dict[str, Any]:
    """Return the fields of a request to vLLM, which knows the recommended penalty too."""
    fields: dict[str, Any] = {} if answer is None else {"structured_outputs": {"choice": [answer]}}
    return fields | {"repetition_penalty": 1.0}


def vllm(model: Path, log: Path, speculation: dict[str, Any] | None, tokens: int) -> Peer:
    """Start vLLM. speculation: None for one token a step."""
    options = [] if speculation is None else ["--speculative-config", json.dumps(speculation)]
    return Peer(vllm_server(HOME, model, log, PROMPT + tokens, options), choice)


def start(name: str, model: Path, streams: int, tokens: int) -> Peer:
    """Start a server for a number of streams. tokens: of an answer, at most."""
    print(f"starting {name}", flush=True)
    log = HOME / "logs" / f"edits_{name.replace(', ', '_').replace(' ', '_')}.log"
    if name in OURS:
        return carousel(model, log, OURS[name], streams)
    if name in VLLM:
        return vllm(model, log, VLLM[name], tokens)
    return llama(model, log, LLAMA[name], streams, tokens)


def edits(text: TextModel, some: list[Case], streams: int, first: int) -> list[Edit]:
    """Return simultaneous requests, those of the cases in turn, beginning with the one at `first`."""
    found = []
    for number in range(streams):
        case = some[(first + number) % len(some)]
        chat = text.render_chat([{"role": "user", "content": case.prompt}])
        found.append(Edit(text.encode(chat, add_special_tokens=False), case.answer))
    return found


def replies(peer: Peer, requested: list[Edit], tokens: int) -> list[Reply]:
    """Return the answers to simultaneous requests. Raises `RuntimeError` for a text that was not asked for."""
    shared = {"model": "model", "max_tokens": tokens, "temperature": 0, "stream": True}
    bodies = [{"prompt": edit.prompt, **shared, **peer.fields(edit.answer)} for edit in requested]

    async def all_of_them() -> list[list[Part]]:
        received: list[list[Part]] = [[] for _ in bodies]
        async with asyncio.timeout(TIMEOUT):
            await asyncio.gather(
                *(
                    receive("127.0.0.1", peer.server.port, "/v1/completions", body, parts.append)
                    for body, parts in zip(bodies, received, strict=True)
                )
            )
        return received

    began = time.perf_counter()
    found = [read(parts, began) for parts in run(all_of_them())]
    for reply, edit in zip(found, requested, strict=True):
        if not reply.is_of(edit.answer):
            raise RuntimeError(f"the server answered {reply.text!r} instead of {edit.answer!r}")
    return found


def read(parts: list[Part], began: float) -> Reply:
    """Parse an answer. Raises `RuntimeError` if it is an error."""
    pieces: list[tuple[float, str]] = []
    last: dict[str, Any] = {}
    for moment, event in events(parts):
        if "error" in event:
            raise RuntimeError(str(event["error"]))
        last = event
        if text := "".join(choice.get("text") or "" for choice in event["choices"]):
            pieces.append((moment - began, text))
    return Reply(pieces, last)


def figures(found: list[Reply], tokens: list[int]) -> dict[str, float]:
    """Return tokens per second while all streams answer and from the first request on, and the last first token.

    tokens: of each answer.
    """
    begun, ended = max(reply.pieces[0][0] for reply in found), max(reply.pieces[-1][0] for reply in found)
    after = sum(number * reply.share_after(begun) for reply, number in zip(found, tokens, strict=True))
    return {
        "tokens_per_s": after / (ended - begun),
        "with_prompts_tokens_per_s": sum(tokens) / ended,
        "last_first_token_s": begun,
    }


def measure(peer: Peer, text: TextModel, requested: list[Edit], tokens: int) -> dict[str, Any]:
    """Return the figures of a server, what others used of the cores meanwhile, and llama-server's counts of drafts.

    tokens: of an answer, at most.
    """
    process = peer.server.process
    process.thaw()
    time.sleep(REST)
    watch = Watch(process)
    try:
        found = replies(peer, requested, tokens)
        others = watch.others()
    finally:
        process.freeze()
    counts = [reply.last.get("timings", {}) for reply in found]
    drafts = {key: sum(one.get(key, 0) for one in counts) for key in ("draft_n", "draft_n_accepted")}
    lengths = [text.count_tokens(reply.text) for reply in found]
    return figures(found, lengths) | {"tokens": sum(lengths), "other_cores": others} | drafts


def measure_rounds(
    names: list[str], model: Path, text: TextModel, some: list[Case], streams: int, rounds: int, tokens: int
) -> list[dict[str, Any]]:
    """Return a row for each server and round, of servers that are started for this number of streams.

    Each answer of llama-server becomes slower by the tokens that earlier ones have left in other slots.
    """
    peers: dict[str, Peer] = {}
    rows: list[dict[str, Any]] = []
    try:
        for name in names:
            peers[name] = start(name, model, streams, tokens)
            peers[name].server.wait()
            peers[name].server.process.freeze()
        for number in range(rounds):
            requested = edits(text, some, streams, number)
            for name, peer in peers.items():
                row = measure(peer, text, requested, tokens)
                rows.append({"peer": name, "streams": streams, "round": number, **row})
                speed, others = row["tokens_per_s"], row["other_cores"]
                print(f"{streams} streams, round {number}: {name} {speed:.1f}, others {others:.1f} cores", flush=True)
    finally:
        for peer in peers.values():
            peer.server.process.stop()
    return rows


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return by number of streams the speed of each server, and that of `carousel` over it in the same rounds."""
    summary: dict[str, Any] = {}
    for streams in sorted({row["streams"] for row in rows}):
        here = [row for row in rows if row["streams"] == streams]
        ours = {row["round"]: row["tokens_per_s"] for row in here if row["peer"] == "carousel"}
        for peer in dict.fromkeys(row["peer"] for row in here):
            own = [row for row in here if row["peer"] == peer]
            found: dict[str, Any] = {"tokens_per_s": spread([row["tokens_per_s"] for row in own])}
            if ours:
                found["carousel_over_it"] = spread([ours[row["round"]] / row["tokens_per_s"] for row in own])
            summary.setdefault(str(streams), {})[peer] = found
    return summary


def main() -> None:
    """Set up the other servers, measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL.file, help="GGUF file of both servers")
    parser.add_argument("--streams", type=int, nargs="+", default=list(ROUNDS))
    parser.add_argument("--rounds", type=int, help=f"default, by the number of streams: {ROUNDS}, else 1")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of an answer, at most (default: %(default)s)")
    parser.add_argument("--own-text", action="store_true", help="a text that the model repeats by itself")
    parser.add_argument("--vllm", action="store_true", help="vLLM in place of llama-server")
    parser.add_argument("--peers", nargs="+", help="names of servers (default: all)")
    options = parser.parse_args()
    theirs: dict[str, Any] = VLLM if options.vllm else LLAMA
    names = options.peers or [*OURS, *theirs]
    if unknown := set(names) - OURS.keys() - theirs.keys():
        parser.error(f"--peers: must be of {[*OURS, *theirs]}, got {sorted(unknown)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that SIGTERM stops the servers too
    versions, model = {}, options.model
    if options.vllm:
        model = HOME / f"{options.model.stem}-bf16"
        unpack(options.model, model)
    if theirs.keys() & names:
        versions = (setup_vllm if options.vllm else setup_llama)(HOME)
    text, some = TextModel.load(options.model), cases()[REPEATED if options.own_text else EDITS]
    rows: list[dict[str, Any]] = []
    for streams in options.streams:
        rounds = options.rounds or ROUNDS.get(streams, 1)
        rows += measure_rounds(names, model, text, some, streams, rounds, options.tokens)
    summary = summarise(rows)
    print(json.dumps(summary, indent=1))
    settings = {
        "model": model.name,
        "tokens": options.tokens,
        "peers": theirs,
        "versions": versions,
    }
    name = ("peers_own_text" if options.own_text else "peers_edits") + ("_vllm" if options.vllm else "")
    print("Saved to", save(name, settings, rows, summary))


if __name__ == "__main__":
    main()
