"""Conversation: the items of a realtime session, in order and indexed by their ids."""

from __future__ import annotations

from collections.abc import Iterator

from app.errors import ApiError
from app.protocols.realtime_events import ConversationItem
from app.protocols.realtime_items import MAX_ITEMS

MAX_CHARACTERS = 4 << 20  # of all items together


class Conversation:
    """Items in the order in which the model reads them. The text of an item in progress counts once `settle` is called
    for it."""

    def __init__(self) -> None:
        self._items: dict[str, ConversationItem] = {}
        self._order: list[str] = []
        self._lengths: dict[str, int] = {}  # characters counted for each item
        self._characters = 0

    def __iter__(self) -> Iterator[ConversationItem]:
        return (self._items[item_id] for item_id in self._order)

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._items

    @property
    def last_id(self) -> str | None:
        """Id of the last item, None in an empty conversation."""
        return self._order[-1] if self._order else None

    def get(self, item_id: str, param: str = "item_id") -> ConversationItem:
        """Return an item. Raises `ApiError` (400) that names `param` if there is none with that id."""
        if item_id not in self._items:
            raise ApiError(400, f"there is no item {item_id[:100]!r}", param=param, code="item_not_found")
        return self._items[item_id]

    def check_room(self, characters: int = 0) -> None:
        """Raise `ApiError` (400) unless one more item of that length fits."""
        if len(self._order) >= MAX_ITEMS:
            raise ApiError(
                400, f"a conversation holds at most {MAX_ITEMS} items; delete some", code="conversation_full"
            )
        if self._characters + characters > MAX_CHARACTERS:
            raise ApiError(
                400,
                f"a conversation holds at most {MAX_CHARACTERS} characters; delete some items",
                param="item",
                code="conversation_full",
            )

    def insert(self, item: ConversationItem, previous: str | None = None) -> str | None:
        """Insert `item` after the item `previous`; None: at the end, "root": at the beginning. Return the id before
        it. Raises `ApiError` (400) if it does not fit, its id is taken, or `previous` is unknown."""
        self.check_room(len(item.text))
        if item.id in self._items:
            raise ApiError(400, f"item {item.id!r} exists already", param="item.id", code="duplicate_item")
        at = len(self._order)
        if previous == "root":
            at = 0
        elif previous is not None:
            at = self._order.index(self.get(previous, "previous_item_id").id) + 1
        self._order.insert(at, item.id)
        self._items[item.id] = item
        self.settle(item)
        return self._order[at - 1] if at else None

    def settle(self, item: ConversationItem) -> None:
        """Count the text that `item` has by now; does nothing for an item that was deleted."""
        if self._items.get(item.id) is item:
            self._characters += len(item.text) - self._lengths.get(item.id, 0)
            self._lengths[item.id] = len(item.text)

    def delete(self, item_id: str) -> None:
        """Remove an item. Raises `ApiError` (400) if there is none with that id."""
        item = self.get(item_id)
        self._order.remove(item.id)
        del self._items[item.id]
        self._characters -= self._lengths.pop(item.id)
