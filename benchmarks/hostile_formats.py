"""Formats that are expensive or wrong: exponential, deep, huge, recursive, with remote references."""

from __future__ import annotations

from typing import Any

Format = dict[str, Any]  # fields of a chat request


def schema(value: Any) -> Format:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}}


def regex(pattern: str) -> Format:
    return {"structured_outputs": {"regex": pattern}}


def grammar(text: str) -> Format:
    return {"structured_outputs": {"grammar": text}}


def nested(depth: int, key: str = "properties") -> Any:
    value: Any = {"type": "string"}
    for _ in range(depth):
        value = {"type": "object", "properties": {"a": value}} if key == "properties" else {key: [value]}
    return value


def doubled(depth: int) -> Any:
    """Return a schema whose references would double at each level if they were copied."""
    definitions: dict[str, Any] = {f"d{depth}": {"type": "integer"}}
    for level in range(depth):
        reference = {"$ref": f"#/$defs/d{level + 1}"}
        definitions[f"d{level}"] = {"type": "object", "properties": {"a": reference, "b": reference}}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


def combined(levels: int) -> Any:
    """Return an allOf of anyOfs, whose product grows exponentially."""
    options = [{"properties": {f"p{level}": {"const": i} for level in range(3)}} for i in range(4)]
    return {
        "type": "object",
        "allOf": [{"anyOf": [{**o, "required": [f"r{n}"]} for o in options]} for n in range(levels)],
    }


FORMATS: dict[str, Format] = {
    "nested 20": schema(nested(20)),
    "nested 60": schema(nested(60)),
    "anyOf nested 60": schema(nested(60, "anyOf")),
    "allOf nested 60": schema(nested(60, "allOf")),
    "references doubled 20": schema(doubled(20)),
    "references doubled 60": schema(doubled(60)),
    "allOf of anyOf 4": schema(combined(4)),
    "allOf of anyOf 8": schema(combined(8)),
    "allOf of anyOf 12": schema(combined(12)),
    "allOf of anyOf 30": schema(combined(30)),
    "remote reference": schema({"$ref": "http://127.0.0.1:9/schema.json"}),
    "remote reference over https": schema({"$ref": "https://example.com/schema.json"}),
    "file reference": schema({"$ref": "file:///etc/passwd"}),
    "relative reference": schema({"$ref": "other.json"}),
    "missing reference": schema({"$ref": "#/$defs/missing"}),
    "reference to itself": schema({"$ref": "#"}),
    "references in a circle": schema(
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    ),
    "recursive object": schema({"type": "object", "properties": {"child": {"$ref": "#"}}}),
    "infinite object": schema({"type": "object", "properties": {"child": {"$ref": "#"}}, "required": ["child"]}),
    "recursive allOf": schema({"allOf": [{"$ref": "#"}, {"type": "object"}]}),
    "dynamic reference": schema({"$dynamicRef": "#node", "$dynamicAnchor": "node"}),
    "1000 properties": schema({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1000)}}),
    "1000 required properties": schema(
        {
            "type": "object",
            "properties": {f"p{i}": {"type": "integer"} for i in range(1000)},
            "required": [f"p{i}" for i in range(1000)],
        }
    ),
    "4000 properties": schema({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(4000)}}),
    "5000 words": schema({"enum": [f"word{i * 7919 % 5000}" for i in range(5000)]}),
    "enum of long texts": schema({"enum": ["x" * 2000 + str(i) for i in range(60)]}),
    "maxLength 10^6": schema({"type": "string", "maxLength": 1_000_000}),
    "minLength 10^6": schema({"type": "string", "minLength": 1_000_000}),
    "minLength 10^18": schema({"type": "string", "minLength": 10**18}),
    "minItems 10^6": schema({"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000}),
    "maxItems 10^9": schema({"type": "array", "items": {"type": "integer"}, "maxItems": 10**9}),
    "nested maxItems": schema(
        {
            "type": "array",
            "maxItems": 1000,
            "items": {"type": "array", "maxItems": 1000, "items": {"type": "array", "maxItems": 1000}},
        }
    ),
    "minProperties 10^6": schema(
        {"type": "object", "minProperties": 1_000_000, "additionalProperties": {"type": "integer"}}
    ),
    "multipleOf": schema({"type": "integer", "multipleOf": 99991}),
    "multipleOf of two primes": schema(
        {"allOf": [{"type": "integer", "multipleOf": 9973}, {"type": "integer", "multipleOf": 9967}]}
    ),
    "range of large numbers": schema({"type": "integer", "minimum": -(10**300), "maximum": 10**300}),
    "tiny multiple": schema({"type": "number", "multipleOf": 1e-300}),
    "pattern with a large count": schema({"type": "string", "pattern": "^(a{1,500}){1,500}$"}),
    "many patterns": schema(
        {"type": "object", "patternProperties": {f"^{c}.*{c}$": {"type": "string"} for c in "abcdefghij"}}
    ),
    "overlapping patterns": schema(
        {"type": "object", "patternProperties": {f".*{c}.*": {"type": "string"} for c in "abcdefgh"}}
    ),
    "pattern and length": schema({"type": "string", "pattern": "^(.*a.{12})$", "minLength": 500, "maxLength": 100_000}),
    "unsupported keywords": schema({"type": "object", "if": {}, "then": {}, "not": {}, "dependentSchemas": {}}),
    "wrong types": schema({"type": "object", "properties": 3, "required": "a"}),
    "unsatisfiable": schema({"type": "integer", "minimum": 10, "maximum": 3}),
    "false": schema(False),
    "nested quantifiers": regex("(a*)*b"),
    "exponential alternatives": regex("(a|a)*(a|aa)*(aa|aaa)*c"),
    "counted counts": regex("((a{1,100}){1,100}){1,100}"),
    "large count": regex("a{1000000}"),
    "huge count": regex("[a-z]{1,1000000000}"),
    "state explosion": regex("(a|b)*a(a|b){18}"),
    "larger state explosion": regex("(a|b)*a(a|b){200}"),
    "explosion over Unicode": regex(r"(\w|\d)*\w(\pL|\pN){40}"),
    "deep groups": regex("(" * 2000 + "a" + ")" * 2000),
    "long alternative": regex("|".join(f"word{i}[0-9]+" for i in range(5000))),
    "look-around": regex("(?=a)(?!b)a"),
    "back reference": regex(r"(a)\1"),
    "unclosed": regex("(["),
    "empty language": grammar("start: a\na: b\nb: a"),
    "ambiguous": grammar('start: x\nx: x x | x x x | "a" |'),
    "very ambiguous": grammar("start: x\nx: x x x x x | x x x | x x | /.*/ |"),
    "many rules": grammar(
        "start: r0\n" + "\n".join(f'r{i}: r{i + 1} "a" | r{i + 1} "b"' for i in range(3000)) + '\nr3000: "x"'
    ),
    "intersections": grammar("start: X\n" + "X: " + " & ".join(f"/(.|\\n)*{c}(.|\\n){{20}}/" for c in "abcdefgh")),
    "complement": grammar("start: X\nX: ~(/(.*a.{15})+/ & ~/(.*b.{15})+/)"),
    "large repetition": grammar('start: ("a" "b"? "c"?){1,100000}'),
    "nested repetition": grammar('start: (((("a"?){1,50}){1,50}){1,50}){1,50}'),
    "a grammar of another syntax": grammar('root ::= "a"'),
    "unknown rule": grammar("start: missing"),
}
