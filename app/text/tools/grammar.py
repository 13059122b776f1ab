"""Grammars of answers with tool calls, in llguidance's variant of Lark.

If a call is required, the answer is one call, or several if the request asks for them. Otherwise it is free text, and
from the start marker of a call on the call must be well-formed and name a known tool. Arguments satisfy the schema of
the tool if it is strict, if a call is required, or if all tools are constrained; otherwise they are any JSON object.
"""

from __future__ import annotations

from app.text.tools.grammar_rules import GrammarRules, any_of, literal, naming
from app.text.tools.syntax import MAX_LEADING_SPACE, CallForm, CallList, CallOffer


def calls_expression(rules: GrammarRules, offer: CallOffer) -> str:
    """Return an expression for calls without text around them."""
    if offer.syntax.is_leading:
        [calls] = offer.lists
        marker = rules.marks.encode(calls.start)
        start = f"{rules.marked(marker)}?" if marker in rules.marks.ids else ""
        return f"{start} {_list(rules, offer, calls)}"
    one = rules.add("calls", any_of(f"{rules.text(each.start)} {_list(rules, offer, each)}" for each in offer.lists))
    return f'{one} ("\\n"? {one})*' if offer.syntax.may_repeat and offer.use.allows_several else one


def text_with_calls(rules: GrammarRules, offer: CallOffer) -> str:
    """Return an expression for text in which there may be calls.

    They are in any order, but nothing follows the only call that is allowed, or a call without a start marker.
    """
    by_start: dict[str, list[str]] = {}
    for each in offer.lists:
        by_start.setdefault(each.start, []).append(_list(rules, offer, each))
    beginnings = (rules.until(f"before_call_{index}", start) for index, start in enumerate(by_start))
    calls = any_of(f"{begin} {any_of(lists)}" for begin, lists in zip(beginnings, by_start.values(), strict=True))
    if offer.syntax.is_leading:
        return any_of(["text?", calls, *_leading(rules, offer)])
    return f"({calls})* text?" if offer.use.allows_several else f"({calls} | text?)"


def _list(rules: GrammarRules, offer: CallOffer, calls: CallList) -> str:
    """Return an expression for one list of calls."""
    at = offer.lists.index(calls)
    heads = [f"call_{at}_{index}" for index in range(len(offer.tools))]
    for index, name in enumerate(heads):
        rules.add(name, any_of(_call(rules, offer, form, index) for form in offer.forms(calls)))
    call = rules.add(f"call_{at}", any_of(heads))
    return f"{any_of(map(rules.text, calls.opens))} {call} {_rest(rules, offer, calls)}"


def _rest(rules: GrammarRules, offer: CallOffer, calls: CallList) -> str:
    """Return an expression for the part of a list after its first call."""
    call = f"call_{offer.lists.index(calls)}"
    is_single = not (calls.separators and offer.use.allows_several)
    more = "" if is_single else f"({any_of(map(rules.text, calls.separators))} {call})*"
    return f"{more} {rules.text(calls.close) if calls.close else ''}"


def _call(rules: GrammarRules, offer: CallOffer, form: CallForm, index: int) -> str:
    """Return an expression for a call of the tool at `index` in one form."""
    heads = any_of(map(rules.marked, form.heads(offer.tools[index], rules.marks)))
    return f"{heads} {_arguments(rules, offer, index)} {_end(rules, form)}"


def _end(rules: GrammarRules, form: CallForm) -> str:
    """Return an expression for the end of a call."""
    return f"{rules.text(form.end)} {f'{rules.text(form.tail)}?' if form.tail else ''}"


def _arguments(rules: GrammarRules, offer: CallOffer, index: int) -> str:
    """Return the name of the rule for the arguments of the tool at `index`."""
    name, tool = f"arguments_{index}", offer.tools[index]
    if not rules.has(name):
        with naming(tool, offer.syntax.name):
            schema = offer.schema(tool)
            rules.add(name, offer.syntax.arguments.expression(rules, schema, is_strict=tool.strict))
    return name


def _leading(rules: GrammarRules, offer: CallOffer) -> list[str]:
    """Return expressions for calls at the beginning of an answer. Text there is a call from a known tool's name on."""
    [calls] = offer.lists
    [end] = {_end(rules, form) for form in calls.forms}
    forms, rest = offer.leading_forms(calls), _rest(rules, offer, calls)
    for index, form in enumerate(forms):
        rules.add(f"BEFORE_{index}", any_of(literal(before + form.before) for before in calls.opens))
        rules.add(f"AFTER_{index}", any_of(map(literal, form.after)))
    expressions = []
    for index, tool in enumerate(offer.tools):
        heads = (f"BEFORE_{at} {literal(form.name(tool))} AFTER_{at}" for at, form in enumerate(forms))
        begin = rules.add_lazy(f"first_{index}", f"/[ \\n]{{0,{MAX_LEADING_SPACE}}}/ {any_of(heads)}")
        expressions.append(f"{begin} {_arguments(rules, offer, index)} {end} {rest}")
    return expressions
