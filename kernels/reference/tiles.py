"""Fixed partition of positions that makes a sum over a context independent of the padded length.

Matrix libraries split a long contraction at a length of their choice (MKL: between 384 and 512 on a Xeon with AVX-512,
between 192 and 256 on an EPYC), so the bits depend on the length, including padding. Attention therefore multiplies
tile by tile, cut from position 0, and adds the tiles in ascending order; a tile of zero weights past the context adds
nothing.
"""

from __future__ import annotations

TILE = 128  # positions; shorter than every contraction split observed

# Softmax adds its terms in vector lanes (position mod 16 picks the lane on AVX-512), but adds a row shorter than a
# vector one by one. And torch uses its own loops for a product if all three sizes are tiny. So a padded context is a
# multiple of this.
LANES = 32


def padded_length(positions: int, page_size: int) -> int:
    """Round `positions` up to a multiple of both the page size and LANES."""
    pages = -(-positions // page_size)
    while pages * page_size % LANES:
        pages += 1
    return pages * page_size


def first_tile_position(first_attended: int, page_size: int) -> int:
    """Return the first position to read: the start of the tile of `first_attended`, or 0 if tiles split pages."""
    return first_attended // TILE * TILE if TILE % page_size == 0 else 0
