"""Parser of the calls that a `CallSyntax` describes."""

from __future__ import annotations

from collections.abc import Callable

from app.text.tools.call_parser import CallParser
from app.text.tools.syntax import MAX_LEADING_SPACE, CallOffer, Head, OpenCall
from app.text.tools.text_reader import Literals, Steps


class CallListParser(CallParser):
    """Parser of one choice's content. A start marker without a call, which no grammar admits, is content."""

    def __init__(self, offer: CallOffer, new_id: Callable[[int], str]) -> None:
        """new_id: returns the id of the call with a number."""
        super().__init__(offer.starts, new_id, offer.max_forced_calls)
        self._offer = offer

    def _read_all(self) -> Steps[None]:
        if self._offer.syntax.is_leading:
            self._hold()
            yield from self._skip_leading_space()
            literals, heads = self._offer.leading
            if found := (yield from self._reader.accept(literals)):
                yield from self._read_list(heads[found])
            self._release()
        yield from super()._read_all()

    def _skip_leading_space(self) -> Steps[None]:
        for _ in range(MAX_LEADING_SPACE):
            if (yield from self._reader.peek()) not in (" ", "\n"):
                return
            self._reader.take(1)

    def _read_calls(self, start: str) -> Steps[None]:
        if self._reported and not self._offer.use.allows_several:
            return
        self.is_inside_call = True
        literals, heads = self._offer.first[start]
        if found := (yield from self._reader.accept(literals)):
            yield from self._read_list(heads[found])
        elif self._reader.is_ended:
            self._drop_rest()

    def _read_list(self, head: Head | None) -> Steps[None]:
        """Read a list of calls, of which the first is begun."""
        reader, offer = self._reader, self._offer
        while head is not None and not self.is_complete:
            is_complete = yield from self._read_call(head)
            if not is_complete:
                if reader.is_ended:
                    self._drop_rest()
                return
            literals, heads = offer.following(head.list)
            found = yield from reader.accept(literals)
            if not found and reader.is_ended and reader.may_continue(literals):
                self._drop_rest()
            head = heads.get(found)

    def _read_call(self, head: Head) -> Steps[bool]:
        """Read the arguments and the end of a call. Return whether both are complete."""
        syntax, marks = self._offer.syntax.arguments, self._offer.marks
        self._open_call(head.tool)
        end, tail = marks.encode(head.form.end), head.form.tail
        schema = self._offer.schema(head.tool)
        call = OpenCall(self._reader, head.tool, schema, marks, end, self._add_arguments)
        if not (yield from syntax.read(call)):
            return False
        self._close_call()
        if not syntax.includes_end and end and not (yield from self._reader.accept(Literals([end]))):
            return False
        tails = Literals([marks.encode(tail)] if tail else [])
        found = yield from self._reader.accept(tails)
        if not found and self._reader.is_ended and self._reader.may_continue(tails):
            self._drop_rest()
        return True
