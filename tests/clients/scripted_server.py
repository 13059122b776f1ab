"""Server with the scripted model, with the options of `carousel serve`: python -m tests.clients.scripted_server demo"""

from __future__ import annotations

import argparse
import sys

from app.cli.serve import run
from app.options import add_arguments, resolve
from app.text.model_folder import download_model
from engine.log_queue import start_logging
from tests.clients.scripted_engine import build_scripted_engine


def main() -> int:
    """Serve until a signal arrives; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    settings = resolve(vars(parser.parse_args()), download=download_model)
    logs = start_logging(settings.log_level, settings.log_format)
    try:
        return run(settings, logs, lambda: (), build=build_scripted_engine)
    finally:
        logs.writer.close(1.0)


if __name__ == "__main__":
    sys.exit(main())
