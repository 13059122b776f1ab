"""Edits by several servers: their answers, and the figures made of them."""

from __future__ import annotations

import pytest

from benchmarks.peers.edits import Reply, figures, read


def test_tokens_of_edits_count_once_all_streams_answer():
    """A server sends a text in pieces of any size."""
    first = Reply([(1.0, "ab"), (2.0, "cd"), (4.0, "ef")], {})
    second = Reply([(2.0, "abc"), (3.0, "def")], {})
    found = figures([first, second], [30, 30])
    assert found["tokens_per_s"] == pytest.approx((10 + 15) / 2)
    assert found["with_prompts_tokens_per_s"] == pytest.approx(60 / 4)


@pytest.mark.parametrize(
    ("said", "reason", "is_right"),
    [
        ("abc", "stop", True),
        ("ab", "stop", False),
        ("ab", "length", True),
        ("xy", "length", False),
    ],
)
def test_an_answer_may_be_cut_at_the_limit_of_its_tokens(said, reason, is_right):
    """A server that ends a text early would seem faster."""
    assert Reply([(1.0, said)], {"choices": [{"finish_reason": reason}]}).is_of("abc") is is_right


def test_any_text_is_right_where_none_is_given():
    """The two servers' models round differently, so their own texts may differ."""
    assert Reply([(1.0, "abc")], {"choices": [{"finish_reason": "stop"}]}).is_of(None)


def test_an_edit_that_fails_is_an_error():
    """Its last event has the server's counts otherwise."""
    event = b'data: {"choices": [{"text": "ab"}], "timings": {"draft_n": 4}}\n'
    reply = read([(1.5, event[:20]), (2.0, event[20:])], 1.0)
    assert (reply.pieces, reply.last["timings"]) == ([(1.0, "ab")], {"draft_n": 4})
    with pytest.raises(RuntimeError, match="full"):
        read([(1.0, b'data: {"error": "the queue is full"}\n')], 0.0)
