"""Properties of the grammars of random schemas, with jsonschema as reference."""

from __future__ import annotations

import json
import random

import jsonschema
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from app.text.schemas.errors import InvalidFormat
from app.text.schemas.normal_form import normal_form
from engine.errors import InvalidParameter
from tests.app.text.schemas.cases import Case, cases
from tests.app.text.schemas.texts import TOKENIZER, grammar, is_accepted, random_text
from tests.profiles import examples

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
PROFILE = settings(max_examples=examples(300), deadline=None, derandomize=True, suppress_health_check=SLOW)


@PROFILE
@given(cases(), st.integers(0, 1 << 32))
def test_texts_of_a_grammar_satisfy_the_schema(case: Case, seed: int):
    """The original schema, with all formats that jsonschema checks."""
    schema, _ = case
    try:
        start = TOKENIZER.compile(grammar(schema))
    except (InvalidFormat, InvalidParameter) as error:
        assume("oneOf" not in str(error) and "uniqueItems" not in str(error))
        raise
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    for offset in range(3):
        text = random_text(start, random.Random(seed + offset), max_bytes=600)
        if text is not None:
            validator.validate(json.loads(text))


@PROFILE
@given(cases())
def test_values_of_a_schema_have_a_text(case: Case):
    """It is accepted compact, in one line, and indented."""
    schema, value = case
    jsonschema.validate(value, schema)
    try:
        start = TOKENIZER.compile(grammar(schema))
    except InvalidFormat as error:
        assume("oneOf" not in str(error))
        raise
    assert is_accepted(start, json.dumps(value, ensure_ascii=False))
    assert is_accepted(start, json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    assert is_accepted(start, json.dumps(value, ensure_ascii=False, indent=2))


@PROFILE
@given(cases())
def test_the_normal_form_of_a_normal_form_is_itself(case: Case):
    """Callers may pass either."""
    try:
        form = normal_form(case[0], is_strict=True)
    except InvalidFormat as error:
        assume("oneOf" not in str(error))
        raise
    assert grammar(form) == grammar(case[0])
