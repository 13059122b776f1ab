"""The fixed partition of positions that makes a sum over a context independent of how long the padded context is.

A matrix product splits a long contraction where its library finds it convenient (MKL: on a Xeon with AVX-512 somewhere
between 384 and 512, on an EPYC between 192 and 256), so its bits depend on the length, padding included. Attention
therefore multiplies tile by tile, cut from position 0, and adds the tiles in ascending order; a tile of zero weights
behind the context adds nothing.
"""

from __future__ import annotations

TILE = 128  # positions; below every contraction split seen

# Softmax adds its terms in vector lanes, position mod 16 picking the lane on AVX-512, but adds a row shorter than a
# vector one by one; and torch multiplies matrices with loops of its own when all three sizes are tiny. So a padded
# context is a multiple of this.
LANES = 32


def padded_length(positions: int, page_size: int) -> int:
    """The least number of positions, whole pages and whole lanes, that holds `positions`."""
    pages = -(-positions // page_size)
    while pages * page_size % LANES:
        pages += 1
    return pages * page_size


def first_tile_position(first_attended: int, page_size: int) -> int:
    """Where a context may begin to be read: the tile that holds `first_attended`, or 0 where tiles and pages do not
    line up.
    """
    return first_attended // TILE * TILE if TILE % page_size == 0 else 0
