"""Conversation: the items of a realtime session, in order and indexed by their ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.errors import ApiError
from app.protocols.realtime_items import MAX_ITEMS, ConversationItem

MAX_CHARACTERS = 4 << 20  # of all items together
BEGINNING = "root"  # in place of the id of an earlier item


class Conversation:
    """Items in the order in which the model reads them. The text of an item in progress counts once `settle` is called
    for it."""

    def __init__(self) -> None:
        self._items: dict[str, ConversationItem] = {}
        self._order: list[str] = []
        self._sizes: dict[str, int] = {}  # characters counted for each item
        self._characters = 0
        self._calls: dict[str, int] = {}  # number of calls by their call_id

    def __iter__(self) -> Iterator[ConversationItem]:
        return (self._items[item_id] for item_id in self._order)

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._items

    def holds(self, item: ConversationItem) -> bool:
        """Return whether this item is in the conversation, and not another one with its id."""
        return self._items.get(item.id) is item

    @property
    def ids(self) -> Sequence[str]:
        """Return the ids of all items, in order."""
        return self._order

    @property
    def last_id(self) -> str | None:
        """Id of the last item, None in an empty conversation."""
        return self._order[-1] if self._order else None

    def before(self, item_id: str) -> str | None:
        """Return the id of the item before another one, None for the first."""
        at = self._order.index(item_id)
        return self._order[at - 1] if at else None

    def get(self, item_id: str, verb: str, param: str = "item_id") -> ConversationItem:
        """Return an item. Raises `ApiError` (400) that names `param` if there is none with that id. verb: what the
        client wants to do with it, for the code, on which clients depend.
        """
        if item_id not in self._items:
            raise ApiError(400, f"there is no item {item_id[:100]!r}", param=param, code=f"item_{verb}_invalid_item_id")
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

    def create(self, item: ConversationItem, previous: str | None = None) -> None:
        """Insert an item of the client as `insert` does. Raises `ApiError` (400) if it does not fit, its id is taken,
        `previous` is unknown, or it is the output of an unknown call.
        """
        self.check_room(item.size)
        if item.id in self._items:
            message = f"item {item.id!r} exists already"
            raise ApiError(400, message, param="item.id", code="item_create_duplicate_item_id")
        if previous not in (None, BEGINNING):
            self.get(previous, "create", "previous_item_id")
        if item.type == "function_call_output" and item.call_id not in self._calls:
            message = f"item.call_id: there is no function_call with the call_id {item.call_id!r}; create it first"
            raise ApiError(400, message, param="item.call_id", code="function_call_not_found")
        self.insert(item, previous)

    def insert(self, item: ConversationItem, previous: str | None = None) -> str | None:
        """Insert `item` after the item `previous`; None: at the end, "root": at the beginning. Return the id before
        it.
        """
        assert item.id not in self._items, f"item {item.id} is inserted twice"
        at = len(self._order)
        if previous is not None:
            at = 0 if previous == BEGINNING else self._order.index(previous) + 1
        self._order.insert(at, item.id)
        self._items[item.id] = item
        if item.type == "function_call":
            self._calls[item.call_id] = self._calls.get(item.call_id, 0) + 1
        self.settle(item)
        return self._order[at - 1] if at else None

    def settle(self, item: ConversationItem) -> None:
        """Count the text that `item` has by now; does nothing for an item that was deleted."""
        if self.holds(item):
            self._characters += item.size - self._sizes.get(item.id, 0)
            self._sizes[item.id] = item.size

    def delete(self, item_id: str) -> None:
        """Remove an item. Raises `ApiError` (400) if there is none with that id."""
        item = self.get(item_id, "delete")
        self._order.remove(item.id)
        del self._items[item.id]
        self._characters -= self._sizes.pop(item.id)
        if item.type == "function_call":
            self._calls[item.call_id] -= 1
            if not self._calls[item.call_id]:
                del self._calls[item.call_id]
