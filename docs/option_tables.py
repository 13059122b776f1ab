"""Write the tables of options into docs/operations.md, from their declarations: python -m docs.option_tables"""

from __future__ import annotations

from pathlib import Path

from app.options import OPTIONS, Options, manual_table

MANUAL = Path(__file__).parent / "operations.md"
BEGIN, END = "<!-- options: written by `make docs` -->", "<!-- end of options -->"


def with_tables(text: str, options: Options = OPTIONS) -> str:
    """Return `text` with the tables of `options` between the two markers."""
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"{MANUAL.name} has no tables of options"
    return f"{before}{BEGIN}\n\n{manual_table(options)}\n\n{END}{after}"


if __name__ == "__main__":
    MANUAL.write_text(with_tables(MANUAL.read_text(encoding="utf-8")), encoding="utf-8")
