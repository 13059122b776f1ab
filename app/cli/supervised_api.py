"""API process of a supervisor: serves its share of the connections to a socket that several processes have."""

from __future__ import annotations

import signal
import sys

from app.cli.serve import run
from app.cli.supervised import ApiChild, read_child
from app.cli.thread_limits import check_threads
from app.options import reread_tenants, resolve
from app.settings import SettingsError
from app.text.model_folder import download_model
from engine.log_queue import start_logging
from engine.parent_death import end_with_parent

LAST_LINES_SECONDS = 1.0  # for queued log lines at the end
SETTINGS_STATUS = 2  # exit status for options that cannot be honoured


def main() -> int:
    """Serve until a signal. Returns the exit status."""
    child = read_child(ApiChild)
    end_with_parent(child.parent)
    settings = resolve(child.flags, download=download_model)
    check_threads()
    logs = start_logging(settings.log_level, settings.log_format)
    try:
        status = run(settings, logs, lambda: reread_tenants(child.flags), child=child)
    except SettingsError as error:  # of a file, such as a store that another server has
        logs.write_plain(f"carousel: {error}")
        status = SETTINGS_STATUS
    finally:
        logs.writer.close(LAST_LINES_SECONDS)
    if status < 0:
        signal.raise_signal(-status)
    return status


if __name__ == "__main__":
    sys.exit(main())
