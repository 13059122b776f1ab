"""Program that prints the engines of a service in a Ray cluster once a second: `python -m app.ray_launcher.watch
CLUSTER NAME`. Each line is a `DirectoryReport`.
"""

from __future__ import annotations

import logging
import sys
import time

import msgspec
import ray

from app.engine_client.ray_engines import DirectoryReport
from app.ray_launcher.directory import ENGINE, NAMESPACE

PRINT_SECONDS = 1.0
ANSWER_SECONDS = 5.0  # for the directory


def main(cluster: str, name: str) -> None:
    """Print a report each second until the process is ended."""
    ray.init(address=cluster, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    while True:
        write(look(name))
        time.sleep(PRINT_SECONDS)


def look(name: str) -> DirectoryReport:
    """Return the current report."""
    try:
        directory = ray.get_actor(f"{name}-directory", namespace=NAMESPACE)
        answers = [directory.token.remote(), directory.addresses.remote(ENGINE)]
        token, engines = ray.get(answers, timeout=ANSWER_SECONDS)
    except ValueError:  # there is no such actor
        return DirectoryReport(problem=f"there is no service {name!r} in the cluster")
    except ray.exceptions.RayError as error:
        return DirectoryReport(problem=f"the directory does not answer: {type(error).__name__}")
    return DirectoryReport(token, tuple(engines.values()))


def write(report: DirectoryReport) -> None:
    """Write a report on a line of its own."""
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception as error:  # the message is for the log of the server, which starts this program again
        write(DirectoryReport(problem=str(error).partition("\n")[0]))
        sys.exit(1)
