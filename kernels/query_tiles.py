"""How the queries of prompts are cut into the tiles that attention computes: a table that lies on the device."""

from __future__ import annotations

from collections.abc import Iterable

QUERIES = 64  # of a tile at most
COLUMNS = 4  # of the table: row of the page table, first query row, number of queries, position of the first query

Tile = tuple[int, int, int, int]


def query_tiles(chunks: Iterable[Tile]) -> list[Tile]:
    """Chunks, written as if each were a tile of any size -> their tiles. Those with most to look at come first:
    programs begin in order, and a long one that began last would have the GPU to itself."""
    tiles = [
        (table_row, row + done, min(QUERIES, queries - done), position + done)
        for table_row, row, queries, position in chunks
        for done in range(0, queries, QUERIES)
    ]
    tiles.sort(key=lambda tile: tile[2] + tile[3], reverse=True)
    return tiles
