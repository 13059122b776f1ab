"""Outputs in the harmony format of gpt-oss. The prompt ends with <|start|>assistant."""

from __future__ import annotations

from tests.app.text.tools.corpus import Case

HM = "<|channel|>analysis<|message|>Hm <b>.<|end|>"
ROLE = "<|start|>assistant"
ADD = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"x": 1, "y": 2}'
ADD_CALL = ("add", '{"x": 1, "y": 2}')
FINAL = "<|channel|>final<|message|>Yes."

CASES = (
    Case("text without messages", "Yes < no.", "Yes < no."),
    Case("final message", FINAL, "Yes.", is_valid=True),
    Case("end of the final message", f"{FINAL}<|return|>", "Yes."),
    Case("analysis, final", HM + ROLE + FINAL, "Yes.", reasoning="Hm <b>.", is_valid=True),
    Case("analysis, call", HM + ROLE + ADD, calls=(ADD_CALL,), reasoning="Hm <b>.", is_valid=True),
    Case("end of a call", HM + ROLE + ADD + "<|call|>", calls=(ADD_CALL,), reasoning="Hm <b>."),
    Case("two calls", f"{ADD}<|call|>{ROLE}{ADD}", calls=(ADD_CALL, ADD_CALL)),
    Case("recipient before the channel", ' to=functions.ping<|channel|>commentary <|constrain|>json<|message|>{}', calls=(("ping", "{}"),)),
    Case("recipient after the role", f'{HM}{ROLE} to=functions.ping<|channel|>commentary<|message|>{{}}', calls=(("ping", "{}"),),
         reasoning="Hm <b>."),
    Case("call in the analysis channel", '<|channel|>analysis to=functions.ping<|message|>{}', calls=(("ping", "{}"),)),
    Case("no format", '<|channel|>commentary to=functions.ping<|message|>{"a": "é"}', calls=(("ping", '{"a": "é"}'),)),
    Case("preamble", f"<|channel|>commentary<|message|>Let me see.<|end|>{ROLE}{ADD}", "Let me see.", (ADD_CALL,), is_valid=True),
    Case("two analysis messages", f"{HM}{ROLE}{HM}{ROLE}{FINAL}", "Yes.", reasoning="Hm <b>.Hm <b>.", is_valid=True),
    Case("analysis that the prompt opened", f"Hm.<|end|>{ROLE}{FINAL}", "Yes.", reasoning="Hm.", is_open=True, is_valid=True),
    Case("call inside analysis", f"<|channel|>analysis<|message|>I could write to=functions.add {{}}.<|end|>{ROLE}{FINAL}", "Yes.",
         reasoning="I could write to=functions.add {}.", is_valid=True),
    Case("markers in a string", '<|channel|>commentary to=functions.run<|message|>{"code": "<|end|><|call|>"}<|call|>',
         calls=(("run", '{"code": "<|end|><|call|>"}'),)),
    Case("braces in a string", '<|channel|>commentary to=functions.run <|constrain|>json<|message|>{"code": "}{"}',
         calls=(("run", '{"code": "}{"}'),), is_valid=True),
    Case("white space in the arguments", '<|channel|>commentary to=functions.ping<|message|>\n{\n}\n<|call|>', calls=(("ping", "{\n}"),)),
    Case("missing end of analysis", f"<|channel|>analysis<|message|>Hm.{ROLE}{FINAL}", "Yes.", reasoning="Hm."),
    Case("missing end and role", f"<|channel|>analysis<|message|>Hm.{FINAL}", "Yes.", reasoning="Hm."),
    Case("other recipient", "<|channel|>commentary to=python<|message|>print(1)", "<|channel|>commentary to=python<|message|>print(1)", is_valid=False),
    Case("unknown channel", "<|channel|>gossip<|message|>a", "<|channel|>gossip<|message|>a", is_valid=False),
    Case("arguments are not JSON", "<|channel|>commentary to=functions.ping<|message|>now", "<|channel|>commentary to=functions.ping<|message|>now", is_valid=False),
    Case("stray marker", f"<|channel|> <|x|>{FINAL}", "<|channel|> <|x|>Yes.", is_valid=False),
    Case("long header", f"<|channel|>{'a' * 600}<|message|>b", f"<|channel|>{'a' * 600}<|message|>b"),
    Case("long header before another marker", f"<|start|>{'a' * 600}{FINAL}", f"<|start|>{'a' * 600}Yes."),
    Case("cut in the header", "<|channel|>anal"),
    Case("cut in the analysis", "<|channel|>analysis<|message|>Hm <", reasoning="Hm <"),
    Case("cut in the arguments", '<|channel|>commentary to=functions.add<|message|>{"x": 1', calls=(("add", '{"x": 1'),), is_valid=False),
    Case("one call allowed", f"{ADD}<|call|>{ROLE}{ADD}", ROLE + ADD, (ADD_CALL,), parallel=False, is_valid=False),
    Case("no tools", f"{HM}{ROLE}{ADD}", ROLE + ADD, reasoning="Hm <b>.", has_tools=False),
)  # fmt: skip
