"""Write the tables of options into docs/operations.md, from their declarations: python -m docs.option_tables"""

from __future__ import annotations

from pathlib import Path

from app.engine_options import ENGINE_OPTIONS, LISTENING
from app.options import OPTIONS, manual_table

MANUAL = Path(__file__).parent / "operations.md"
# Options of each command. Those that `carousel engine` shares with `carousel serve` are in the first tables alone.
TABLES = {
    "options": OPTIONS,
    "options of carousel engine": tuple(option for option in ENGINE_OPTIONS if option.group == LISTENING),
}


def with_tables(text: str) -> str:
    """Return `text` with the tables of each command between its two markers."""
    for name, options in TABLES.items():
        begin, end = f"<!-- {name}: written by `make docs` -->", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        assert found, f"{MANUAL.name} has no place for {name}"
        text = f"{before}{begin}\n\n{manual_table(options)}\n\n{end}{after}"
    return text


if __name__ == "__main__":
    MANUAL.write_text(with_tables(MANUAL.read_text(encoding="utf-8")), encoding="utf-8")
