"""Partition of prompt queries into attention tiles, listed in a table on the device."""

from __future__ import annotations

from collections.abc import Iterable

MAX_TILE_QUERIES = 64  # maximum per tile
TILE_COLUMNS = 4  # row of the page table, first query row, number of queries, position of the first query

Tile = tuple[int, int, int, int]


def query_tiles(chunks: Iterable[Tile]) -> list[Tile]:
    """Split chunks, each given as one tile of any size, into tiles of at most QUERIES queries.

    Tiles with the longest contexts come first: programs start in order, and a long one that started last would run
    alone.
    """
    tiles = [
        (table_row, row + done, min(MAX_TILE_QUERIES, queries - done), position + done)
        for table_row, row, queries, position in chunks
        for done in range(0, queries, MAX_TILE_QUERIES)
    ]
    tiles.sort(key=lambda tile: tile[2] + tile[3], reverse=True)
    return tiles
