"""Simulation of many engines behind several API processes: latencies, fair shares and faults against stated marks.

    python -m benchmarks.fleet suite       # people beside bulk work, tenants, faults, sessions, and a table of marks
    python -m benchmarks.fleet thousand    # 1,000 engines for a simulated minute, with faults
    python -m benchmarks.fleet live        # two simulated engines against two live ones
    python -m benchmarks.fleet decisions   # CPU time of a routing decision

Router, requests in flight, scheduler and policy are those of the server; clock, forward pass and network are not.
"""

from __future__ import annotations

import argparse
import json

from benchmarks.fleet.decisions import decision_microseconds
from benchmarks.fleet.live import live
from benchmarks.fleet.suite import suite
from benchmarks.fleet.thousand import thousand


def _decisions(options: argparse.Namespace) -> None:
    print(json.dumps(decision_microseconds(options.candidates), indent=1))


def main() -> None:
    """Run one of the simulations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("suite")
    command.add_argument("--seconds", type=float, default=20.0, help="simulated time of each scenario")
    command.add_argument("--only", default="", metavar="TEXT", help="scenarios with this text in their names; no marks")
    command.add_argument("--processes", type=int, default=2)
    command.set_defaults(run=suite)
    command = commands.add_parser("thousand")
    command.add_argument("--engines", type=int, default=1000)
    command.add_argument("--seconds", type=float, default=60.0)
    command.add_argument("--load", type=float, default=0.95, help="share of the capacity")
    command.add_argument("--age", type=float, default=0.1, help="seconds until a load report arrives")
    command.add_argument("--processes", type=int, default=2)
    command.set_defaults(run=thousand)
    command = commands.add_parser("decisions")
    command.add_argument("--candidates", type=int, default=64)
    command.set_defaults(run=_decisions)
    command = commands.add_parser("live")
    command.add_argument("--model", help="model folder; default: small random weights")
    command.add_argument("--runs", type=int, default=3)
    command.add_argument("--seconds", type=float, default=20.0)
    command.add_argument("--load", type=float, default=0.6, help="share of the capacity")
    command.add_argument("--warm-up-rate", type=float, default=10.0, help="requests per second")
    command.set_defaults(run=live)
    options = parser.parse_args()
    run = options.run
    del options.run
    run(options)


if __name__ == "__main__":
    main()
