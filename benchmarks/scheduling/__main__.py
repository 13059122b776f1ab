"""Scheduling policies compared: latency of interactive requests, throughput of bulk work, and isolation of tenants.

    python -m benchmarks.scheduling live        # mixed load on a real server, policies interleaved
    python -m benchmarks.scheduling tenants     # one tenant floods, the other sends a request now and then
    python -m benchmarks.scheduling overload    # ten times the capacity: latency of refusals
    python -m benchmarks.scheduling check       # the simulator against the live engine
    python -m benchmarks.scheduling million     # simulation of every policy with a million requests, and a plot
    python -m benchmarks.scheduling device      # interactive requests next to a backlog on a simulated async device

`live`: interactive requests arrive as a Poisson process, first on an idle server, then with a backlog that occupies
every slot; bulk work alone is measured too. The share of the machine that interactive requests use is its busy time
when they run alone. Every figure is a ratio within one run. In `live` and `tenants` all servers are up and take turns
(`windows.py`); an interrupted run saves its measurements so far.
"""

from __future__ import annotations

import argparse
import shlex
import signal

from app.cli.bench.workloads import WORKLOADS
from benchmarks.peers.model import SHAPES
from benchmarks.scheduling.check import CHECK_SCALE, CHECKED, check
from benchmarks.scheduling.device import device
from benchmarks.scheduling.live import live
from benchmarks.scheduling.load import POLICIES, SHAPE
from benchmarks.scheduling.million import million
from benchmarks.scheduling.overload import overload
from benchmarks.scheduling.tenants import tenants


def _policies(words: str) -> list[str]:
    names = words.split(",")
    if unknown := [name for name in names if name not in POLICIES]:
        raise argparse.ArgumentTypeError(f"unknown policy {unknown[0]!r}; choose from {', '.join(POLICIES)}")
    return names


def main() -> None:
    """Run one of the comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, run in (("live", live), ("tenants", tenants), ("overload", overload)):
        command = commands.add_parser(name)
        command.add_argument("--runs", type=int, default=12, help="quiet windows per part; for overload, servers")
        command.add_argument("--seconds", type=float, default=6.0)
        command.add_argument("--model", help=f"model folder; default: random weights of the shape {SHAPE}")
        command.add_argument("--vocabulary", type=int, default=SHAPES[SHAPE]["vocab_size"])
        command.add_argument("--serve", type=shlex.split, default=[], metavar="OPTIONS", help='server options: "--x 1"')
        command.set_defaults(run=run)
    every = ",".join(POLICIES)
    commands.choices["live"].add_argument("--policies", type=_policies, default=every, help=f"default: {every}")
    command = commands.add_parser("check")
    command.add_argument("--model", help=f"model folder; default: random weights of the shape {SHAPE}")
    command.add_argument("--runs", type=int, default=3)
    command.add_argument("--requests", type=int, default=150)
    command.add_argument("--rate", type=float, default=CHECK_SCALE.rate)
    command.add_argument("--workloads", default=CHECKED, help=f"comma-separated, from {', '.join(WORKLOADS)}")
    command.set_defaults(run=check)
    command = commands.add_parser("million")
    command.add_argument("--requests", type=int, default=1_000_000)
    command.add_argument("--workload", choices=sorted(WORKLOADS), default="mixed")
    command.add_argument("--rate", type=float, default=150.0)
    command.set_defaults(run=million)
    command = commands.add_parser("device")
    command.add_argument(
        "--prompts", type=int, nargs="+", default=[128, 512, 2048], help="tokens of an interactive prompt"
    )
    command.set_defaults(run=device)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    run = options.run
    del options.run
    run(options)


if __name__ == "__main__":
    main()
