"""Output tokens per second and latencies of this server and its peers on a CPU, in one interleaved run.

The peers (vLLM's CPU build, llama-server, transformers serve, transformers generate in static batches) serve the same
random bfloat16 weights and get the same token IDs over HTTP: prompts of 64 tokens or --prompt, answers of 32-96, all
streams at once. Peers that are not being measured are frozen. The bound is the linear layers alone.

    python -m benchmarks.peers                      # 5 interleaved runs; sets up missing peers first
    python -m benchmarks.peers --setup              # set up missing peers only
    python -m benchmarks.peers --model qwen3-0.6b   # at 1 and 8 streams
    python -m benchmarks.peers --prompt 1024 --streams 1,4,8
    python -m benchmarks.peers --gguf FILE          # the same file on this server and llama-server
    python -m benchmarks.peers --gguf FILE --quantize Q8_0
    python -m benchmarks.peers --workload lognormal # closed loop, 32 clients, lengths like ShareGPT's
    python -m benchmarks.peers --workload poisson   # the same lengths, open loop at 20 to 120 % of the capacity
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.arrivals import CLIENTS, MAX_OUTPUT, MAX_PROMPT, PERCENT_OF_CAPACITY, LognormalLoad, PoissonLoad
from benchmarks.peers.environments import SetupFailed, quantize, set_up, write_gguf
from benchmarks.peers.load import LONGEST, PROMPT, SHORTEST, Load
from benchmarks.peers.model import SHAPES, make_model
from benchmarks.peers.plot import draw
from benchmarks.peers.servers import PEERS, Peer, PeerFailed, Watch, context
from benchmarks.results import FOLDER, save, spread
from engine.model_files.open_model import open_model

STREAMS = {"llama-115m": "1,4,8,16,32", "qwen3-0.6b": "1,8"}
FIRST = 8  # number of first tokens that are compared between peers
LATENCIES = ("ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms", "largest_gap_ms")
FIGURES = ("tokens_per_s", "requests_per_s", *LATENCIES, "tokens_per_event", "other_cores")
REST = 0.5  # seconds between thawing and the run, so that a server is not measured right after it was stopped
DISTURBED = 0.1  # cores used by unrelated processes above which a warning is printed
GGUF = ("carousel", "llama-server")
HTTP = ("carousel", "vllm", "llama-server", "transformers serve")
WORKLOADS = ("together", "lognormal", "poisson")


class Comparison:
    """Running peers and their measurements. A failing peer is dropped with a warning, and the others continue."""

    def __init__(self, vocabulary: int, prompt: int, workload: str = "together", capacity: float | None = None) -> None:
        """prompt: tokens per prompt when all streams start together. capacity: requests per second for Poisson
        arrivals; None: measure it in a closed loop of the first peer."""
        self.vocabulary = vocabulary
        self.prompt = prompt
        self.workload = workload
        self.capacity = capacity
        self.peers: dict[str, Peer] = {}
        self.dropped: dict[str, str] = {}
        self.rows: list[dict[str, Any]] = []
        self.agreement: dict[str, list[int]] = {}

    def drop(self, name: str, reason: str) -> None:
        """Stop a peer and exclude it from further measurements."""
        print(f"!!! {name} is excluded: {reason}", flush=True)
        self.dropped[name] = reason
        if name in self.peers:
            self.peers.pop(name).process.stop()

    def start(self, home: Path, model: Path, names: list[str], options: dict[str, list[str]]) -> None:
        """Start the peers one after another; each is frozen as soon as it is ready."""
        for name in names:
            print(f"starting {name}", flush=True)
            try:
                log = home / "logs" / f"{name.replace(' ', '_')}.log"
                self.peers[name] = PEERS[name][1](home, model, log, self._context, options.get(name, []))
                self.peers[name].wait()
                self.peers[name].process.freeze()
            except (PeerFailed, SetupFailed, OSError) as error:
                self.drop(name, str(error))

    def measure(self, streams: int, runs: int) -> None:
        """Warm up each peer and compare their tokens; then measure the runs, each with all peers in turn."""
        if load := self._warm_up(streams):
            warm_up = {name: self._measure(name, load) for name in list(self.peers)}
            self._compare({name: measured[1] for name, measured in warm_up.items() if measured})
        for run in range(runs):
            for name in list(self.peers):
                measured = self._measure(name, self._load(streams, run))
                if measured:
                    self.rows.append({"peer": name, "streams": streams, "run": run, **measured[0]})
                    print(f"{streams} streams, run {run}: {name} {measured[0]['tokens_per_s']:.1f}", flush=True)

    def stop(self) -> None:
        """Stop all peers."""
        for peer in self.peers.values():
            peer.process.stop()

    def measure_capacity(self) -> None:
        """Use the request rate of the first peer's closed loop as the capacity, unless it was specified."""
        if self.workload != "poisson" or self.capacity is not None or not self.peers:
            return
        measured = self._measure(next(iter(self.peers)), LognormalLoad(CLIENTS, -2, self.vocabulary))
        if measured is None:
            raise PeerFailed("the capacity could not be measured; specify it with --capacity")
        self.capacity = measured[0]["requests_per_s"]
        print(f"capacity: {self.capacity:.2f} requests per second", flush=True)

    @property
    def _context(self) -> int:
        return context(self.prompt if self.workload == "together" else MAX_PROMPT + MAX_OUTPUT)

    def _warm_up(self, streams: int) -> Load | None:
        """Return the warm-up load of a level.

        Staggered workloads are warmed up once, by a burst before the first level: a run takes minutes, and levels do
        not differ in anything that needs a warm-up.
        """
        if self.workload == "together":
            return self._load(streams, -1)
        return None if self.agreement else LognormalLoad(CLIENTS, -1, self.vocabulary, requests_per_client=1)

    def _load(self, streams: int, run: int) -> Load:
        """Return the load of a level: a number of streams or clients, or a percentage of the capacity."""
        if self.workload == "lognormal":
            return LognormalLoad(streams, run, self.vocabulary)
        if self.workload == "poisson":
            assert self.capacity is not None
            return PoissonLoad(CLIENTS, run, self.vocabulary, rate=self.capacity * streams / 100)
        return Load(streams, run, self.vocabulary, self.prompt)

    def _measure(self, name: str, load: Load) -> tuple[dict[str, Any], list[list[str]]] | None:
        process = self.peers[name].process
        process.thaw()
        time.sleep(REST)
        watch = Watch(process)
        try:
            measured, words = self.peers[name].measure(load)
        except (PeerFailed, RuntimeError, OSError) as error:  # TimeoutError is an OSError
            self.drop(name, f"{type(error).__name__} at {load.streams} streams: {error}")
            return None
        else:
            others = watch.others()
            if others > DISTURBED:
                print(f"!!! {name} was disturbed: other processes used {others:.2f} cores meanwhile", flush=True)
            return measured | {"other_cores": others}, words
        finally:
            process.freeze()

    def _compare(self, words: dict[str, list[list[str]]]) -> None:
        """Record how many first tokens of each answer equal this server's. Near-ties of random logits end agreement."""
        for name, answers in words.items():
            for ours, theirs in zip(words.get("carousel", []), answers, strict=False):
                same = [a == b for a, b in zip(ours[:FIRST], theirs[:FIRST], strict=False)]
                self.agreement.setdefault(name, []).append([*same, False].index(False))

    def summary(self) -> dict[str, Any]:
        """Return median and range of all figures, by number of streams and peer."""
        out: dict[str, Any] = {}
        for streams in sorted({row["streams"] for row in self.rows}):
            for name in PEERS:
                rows = [row for row in self.rows if (row["peer"], row["streams"]) == (name, streams)]
                keys = [key for key in FIGURES if rows and key in rows[0]]
                if keys:
                    out.setdefault(str(streams), {})[name] = {k: spread([row[k] for row in rows]) for k in keys}
        return out


def table(summary: dict[str, Any]) -> str:
    """Return the medians as a Markdown table, with the range of tokens per second."""
    lines = [
        "| Streams, or % of capacity | | tokens/s (range) | of the bound | TTFT p50 ms | TTFT p99 ms | ITL p50 ms "
        "| ITL p99 ms | largest gap ms |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for streams, peers in summary.items():
        limit = peers.get("bound", {}).get("tokens_per_s", {}).get("median")
        for name, figures in peers.items():
            speed = figures["tokens_per_s"]
            cells = [streams, name, f"{speed['median']:.1f} ({speed['min']:.1f}-{speed['max']:.1f})"]
            cells.append(f"{speed['median'] / limit:.0%}" if limit else "")
            cells += [f"{figures[key]['median']:.1f}" if key in figures else "" for key in LATENCIES]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def pool(files: list[Path]) -> None:
    """Print ratios over all runs of several files: to the bound, and to the best peer of the same run."""
    rows = [(at, row) for at, file in enumerate(files) for row in json.loads(file.read_text())["rows"]]
    for streams in sorted({row["streams"] for _, row in rows}):
        of_bound, over_best = [], []
        for key in sorted({(at, row["run"]) for at, row in rows if row["streams"] == streams}):
            speeds = {
                row["peer"]: row["tokens_per_s"]
                for at, row in rows
                if (at, row["run"], row["streams"]) == (*key, streams)
            }
            ours, bound = speeds.pop("carousel"), speeds.pop("bound")
            of_bound.append(ours / bound)
            over_best.append(ours / max(speeds.values()))
        print(
            f"{streams} streams, {len(of_bound)} runs: {statistics.median(over_best):.2f} x the best peer "
            f"({min(over_best):.2f}-{max(over_best):.2f}), {statistics.median(of_bound):.0%} of the bound "
            f"({min(of_bound):.0%}-{max(of_bound):.0%})"
        )


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(SHAPES), default="llama-115m")
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="serve this file, by carousel and llama-server")
    parser.add_argument("--quantize", metavar="TYPE", help="quantise the file, or --model, by llama-quantize: Q4_K_M")
    parser.add_argument("--workload", choices=WORKLOADS, default="together", help="default: %(default)s")
    parser.add_argument(
        "--streams",
        help=f"numbers of streams; for poisson percentages of the capacity. Default: {STREAMS}, lognormal {CLIENTS}, "
        f"poisson {','.join(map(str, PERCENT_OF_CAPACITY))}".replace("%", "%%"),
    )
    parser.add_argument(
        "--capacity", type=float, metavar="R", help="requests per second for poisson; default: measured, first peer"
    )
    parser.add_argument(
        "--prompt", type=int, default=PROMPT, metavar="TOKENS", help="prompt tokens per stream (default: %(default)s)"
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--peers", help=f"peers to measure; default: {','.join(PEERS)}, for staggered workloads those with HTTP"
    )
    parser.add_argument("--home", type=Path, default=Path.home() / ".cache/carousel/peers")
    parser.add_argument("--setup", action="store_true", help="set up missing peers and exit")
    parser.add_argument(
        "--options",
        nargs=2,
        action="append",
        default=[],
        metavar=("PEER", "ARGUMENTS"),
        help="add arguments to its command",
    )
    parser.add_argument("--pool", nargs="+", type=Path, metavar="FILE", help="combine result files without measuring")
    options = parser.parse_args()
    is_together = options.workload == "together"
    is_file = options.gguf is not None or options.quantize is not None
    default = GGUF if is_file else PEERS if is_together else HTTP
    options.peers = options.peers.split(",") if options.peers else list(default)
    if is_file and (others := set(options.peers) - set(GGUF)):
        parser.error(f"--gguf and --quantize allow {', '.join(GGUF)}, got {', '.join(sorted(others))}")
    options.streams = [int(number) for number in (options.streams or _default_streams(options)).split(",")]
    if not is_together and (others := set(options.peers) - set(HTTP)):
        parser.error(f"--workload {options.workload} requires peers with HTTP, got {', '.join(sorted(others))}")
    if not is_together and options.prompt != PROMPT:
        parser.error(f"--prompt applies to --workload together; {options.workload} draws prompt lengths")
    if options.capacity is not None and (options.workload != "poisson" or not options.capacity > 0):
        parser.error("--capacity must be a positive number of requests per second, and requires --workload poisson")
    if options.prompt < 1:
        parser.error(f"--prompt must be at least 1 token, got {options.prompt}")
    if unknown := set(options.peers) - set(PEERS):
        parser.error(f"unknown peers in --peers: {', '.join(sorted(unknown))}; choose from {', '.join(PEERS)}")
    if unknown := {name for name, _ in options.options} - set(HTTP):
        parser.error(f"--options supports {', '.join(HTTP)}, got {', '.join(sorted(unknown))}")
    return options


def _default_streams(options: argparse.Namespace) -> str:
    if options.workload == "poisson":
        return ",".join(map(str, PERCENT_OF_CAPACITY))
    if options.workload == "lognormal":
        return str(CLIENTS)
    return STREAMS["llama-115m" if options.gguf else options.model]


def main() -> None:
    """Set up the peers, measure, print and save."""
    options = arguments()
    if options.pool:
        pool(options.pool)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that SIGTERM stops the peers too
    versions, failed = set_up(options.home, {PEERS[name][0] or "" for name in options.peers})
    if options.setup:
        for name, reason in failed.items():
            print(f"!!! {name}: {reason}")
        return
    model, about = _model(options)
    comparison = Comparison(about["vocab_size"], options.prompt, options.workload, options.capacity)
    for name in options.peers:
        if PEERS[name][0] in failed:
            comparison.drop(name, failed[PEERS[name][0] or ""])
    extra = {name: shlex.split(text) for name, text in options.options}
    try:
        names = [name for name in options.peers if name not in comparison.dropped]
        comparison.start(options.home, model, names, extra)
        comparison.measure_capacity()
        for streams in options.streams:
            comparison.measure(streams, options.runs)
    finally:
        comparison.stop()
    report(options, about, extra, comparison, versions)


def _model(options: argparse.Namespace) -> tuple[Path, dict[str, Any]]:
    """Return the folder or file that the peers serve, and its description with vocab_size."""
    home, file = options.home, options.gguf
    about = {"name": options.model, **SHAPES[options.model]}
    if file is None:
        folder = home / "models" / options.model
        make_model(folder, options.model)
        if options.quantize is None:
            return folder, about
        file = write_gguf(home, folder)
    else:
        about = {"name": file.stem, "vocab_size": open_model(file).config().content["vocab_size"]}
    if options.quantize is not None:
        file = quantize(home, file, options.quantize)
        about["name"] = f"{about['name']}-{options.quantize}"
    return file, about


def report(
    options: argparse.Namespace,
    about: dict[str, Any],
    extra: dict[str, list[str]],
    comparison: Comparison,
    versions: dict[str, dict[str, str]],
) -> None:
    """Print the table, save the rows and draw the plot."""
    summary = comparison.summary()
    agreement = {name: statistics.mean(values) for name, values in comparison.agreement.items()}
    settings = {
        "model": about,
        "workload": options.workload,
        "capacity": comparison.capacity,
        **({"prompt": options.prompt, "output": [SHORTEST, LONGEST]} if options.workload == "together" else {}),
        "runs": options.runs,
        "options": extra,
        "versions": versions,
        "left_out": comparison.dropped,
        f"of_{FIRST}_first_tokens_as_carousel": agreement,
    }
    print(table(summary))
    print(f"mean number of first {FIRST} tokens equal to carousel's:", json.dumps(agreement))
    for name, reason in comparison.dropped.items():
        print(f"!!! {name} was excluded: {reason}")
    name = "peers" if about["name"] == "llama-115m" else f"peers_{about['name'].lower()}"
    if options.prompt != PROMPT:
        name += f"_prompts_of_{options.prompt}"
    if options.workload != "together":
        print("Saved to", save(f"{name}_{options.workload}", settings, comparison.rows, summary))
        return
    print("Saved to", save(name, settings, comparison.rows, summary))
    print("Plot saved to", draw(summary, about["name"], FOLDER / f"{name}.svg"))


if __name__ == "__main__":
    main()
