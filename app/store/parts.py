"""Parts of a store: the tables of each kind of records, as the schema, `carousel store` and the age limit see them.

A new kind is one `Part`, declared beside its statements (`app/store/journal_part.py`) and named in `PARTS`.
"""

from __future__ import annotations

from app.store.journal_part import JOURNAL
from app.store.limit_tables import RATES, REFUSED_KEYS
from app.store.page_part import PAGE_ROWS
from app.store.part import Part
from app.store.record_parts import RECORD_PARTS
from app.store.sessions_part import SESSIONS
from app.store.usage_rows import USAGE_ROWS

# In the order in which `carousel store` shows them, and in which records are removed.
PARTS: tuple[Part, ...] = (
    JOURNAL,
    *RECORD_PARTS,
    PAGE_ROWS,
    SESSIONS,
    USAGE_ROWS,
    RATES.part("rate limits"),
    REFUSED_KEYS.part("refused keys"),
)
