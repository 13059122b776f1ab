"""C header of `kernels.slots.SlotRecord`, generated when the library is compiled."""

from __future__ import annotations

import numpy as np

from kernels.slots import SlotRecord

FILE_NAME = "slot_record.h"
C_TYPES = {"u8": "uint64_t", "i8": "int64_t", "i4": "int32_t", "f4": "float"}


def header(dtype: np.dtype[np.void] = SlotRecord) -> str:
    """Return the header with `struct SlotRecord`, and assertions that a compiler lays it out as numpy does."""
    fields = [(name, dtype[name].str[1:], dtype.fields[name][1]) for name in dtype.names or () if dtype.fields]
    lines = [
        "#pragma once",
        "#include <cstddef>",
        "#include <cstdint>",
        "struct SlotRecord {",
        *(f"    {C_TYPES[kind]} {name};" for name, kind, _ in fields),
        "};",
        f'static_assert(sizeof(SlotRecord) == {dtype.itemsize}, "size");',
        *(f'static_assert(offsetof(SlotRecord, {name}) == {offset}, "{name}");' for name, _, offset in fields),
    ]
    return "\n".join(lines) + "\n"
