"""Tokens to text as they come, and stop strings across the pieces."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from app.schemas.common import SamplingFields
from app.text import Detokenizer, StopMatcher, TemplateBroken, TemplateRefused, TextModel, TokenizerMissing


def byte_level() -> TextModel:
    """One token for each byte and a few merged ones: characters are cut everywhere."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merged = ["he", "ll", "hell", "Ġw", "ð", "ðŁ"]
    vocab = {token: i for i, token in enumerate(dict.fromkeys([*alphabet, *merged]))}
    tokenizer = Tokenizer(models.BPE(vocab, [("h", "e"), ("l", "l"), ("he", "ll"), ("Ġ", "w"), ("ð", "Ł")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return TextModel(tokenizer, "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", {}, frozenset())


MODEL = byte_level()
ANY_IDS = st.lists(st.integers(0, MODEL.tokenizer.get_vocab_size() - 1), max_size=40)


@given(st.text(max_size=40))
@settings(deadline=None)
def test_a_text_survives_being_cut_into_tokens(text: str):
    """Every character arrives, whole, in order."""
    detokenizer = Detokenizer(MODEL)
    pieces = [detokenizer.push(i) for i in MODEL.encode(text)] + [detokenizer.flush()]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces if "\ufffd" not in text)


@given(st.text(max_size=200))
@settings(deadline=None)
def test_no_text_has_fewer_tokens_than_its_length_says(text: str):
    """Whatever its characters, and where some are composed first too."""
    assert MODEL.least_tokens(text) <= len(MODEL.encode(text))
    composing = byte_level()
    composing.tokenizer.normalizer = normalizers.NFC()
    assert composing.least_tokens(text) <= len(composing.encode(text))


def test_where_a_token_may_stand_for_any_number_of_characters_nothing_is_said():
    """One for unknown words, and one that takes the spaces beside it."""
    words = TextModel(Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]")), None, {}, frozenset())
    taking = byte_level()
    taking.tokenizer.add_special_tokens([AddedToken("<|end|>", rstrip=True)])
    assert [words.least_tokens("a" * 99), taking.least_tokens("a" * 99), MODEL.least_tokens("a" * 99)] == [0, 0, 24]


@given(ANY_IDS)
@settings(deadline=None, max_examples=300)
def test_streamed_text_is_the_text_of_all_tokens(ids: list[int]):
    """Even for bytes that make no characters, the pieces add up to the whole: nothing said is taken back."""
    detokenizer = Detokenizer(MODEL)
    streamed = "".join([*(detokenizer.push(i) for i in ids), detokenizer.flush()])
    assert streamed == MODEL.decode(ids)


def sentence_piece() -> TextModel:
    """As Llama 2's: words bring the space before them, a text's first one is none, and bytes have tokens."""
    tokens = ["<unk>", "<s>", "▁the", "▁engine", "s", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.add_special_tokens(["<s>"])
    space = decoders.Replace("▁", " ")
    tokenizer.decoder = decoders.Sequence([space, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return TextModel(tokenizer, None, {}, frozenset())


PIECES = sentence_piece()


def say(*parts: str) -> list[int]:
    """Tokens, and characters that have none: their bytes."""
    id_of = PIECES.tokenizer.token_to_id
    return [
        id_of(token)
        for part in parts
        for token in ([part] if id_of(part) is not None else [f"<0x{byte:02X}>" for byte in part.encode()])
    ]


@given(st.lists(st.sampled_from(["<s>", "▁the", "▁engine", "s", *"~é漢😀"]), max_size=24), st.data())
@settings(deadline=None, max_examples=300)
def test_a_text_that_goes_on_is_the_rest_of_the_whole(parts: list[str], data: st.DataObject):
    """With the space between, and where a character is cut between them."""
    ids = say(*parts)
    cut = data.draw(st.integers(0, len(ids)))
    begun, rest = Detokenizer(PIECES), Detokenizer(PIECES, ids[:cut])
    pieces = [*map(begun.push, ids[:cut]), *map(rest.push, ids[cut:]), rest.flush()]
    assert "".join(pieces) == PIECES.decode(ids)


def test_characters_that_are_bytes_come_whole_one_behind_the_other():
    """With what stands before and behind them."""
    detokenizer = Detokenizer(PIECES)
    pieces = [detokenizer.push(token_id) for token_id in say("▁the", *"😀😀é漢字", "▁engine")]
    assert list(filter(None, pieces)) == ["the", "😀", "😀", "é", "漢", "字", " engine"]


def test_a_text_goes_on_behind_characters_that_are_bytes():
    """However many of them: none is cut."""
    for faces in range(1, 20):
        detokenizer = Detokenizer(PIECES, say(*"😀" * faces))
        assert detokenizer.push(*say("▁engine")) + detokenizer.flush() == " engine"


def test_a_text_of_its_own_begins_without_a_space():
    """An answer of a chat does, and a prompt that is only a begin token."""
    ids = [PIECES.tokenizer.token_to_id(token) for token in ("<s>", "▁the", "▁engine", "s")]
    for before in ((), ids[:1]):
        detokenizer = Detokenizer(PIECES, before)
        assert "".join(map(detokenizer.push, ids[1:])) == "the engines"


def test_bytes_of_tokens_that_bring_a_space_or_are_bytes():
    """What they stand for behind others."""
    told = {token: PIECES.token_bytes(PIECES.tokenizer.token_to_id(token)) for token in ("▁the", "s", "<0xE4>", "<s>")}
    assert told == {"▁the": b" the", "s": b"s", "<0xE4>": b"\xe4", "<s>": b"<s>"}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("a{% generation %}{{ messages[0].content }}{% endgeneration %}b", "axb"),
        ("{% generation %}{% set y = 1 %}{% endgeneration %}{{ y is defined }}", "False"),
        ("{{ {'b': 1, 'a': [2]} | tojson(separators=(',', ':'), sort_keys=true) }}", '{"a":[2],"b":1}'),
    ],
)
def test_what_templates_of_transformers_may_say_is_understood(template: str, text: str):
    """Marks of what training learns from, and JSON as its filter has it."""
    model = TextModel(MODEL.tokenizer, template, {}, frozenset())
    assert model.render_chat([{"role": "user", "content": "x"}]) == text


def test_an_emoji_comes_out_at_once_and_only_when_complete():
    """Three quarters of a character are not shown."""
    ids = MODEL.encode("🎠")
    detokenizer = Detokenizer(MODEL)
    assert [detokenizer.push(i) for i in ids] == [""] * (len(ids) - 1) + ["🎠"]


@given(
    st.text(alphabet="ab", max_size=40),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=4),
    st.lists(st.integers(0, 5), min_size=1, max_size=60),
)
@settings(deadline=None, max_examples=400)
def test_a_stop_string_is_found_however_the_text_is_cut(text: str, stops: list[str], sizes: list[int]):
    """The text shown ends before the first stop string, and no part of one is ever shown."""
    matcher, shown, met, at = StopMatcher(stops), "", None, 0
    for size in itertools.cycle([*sizes, 1]):
        if at >= len(text) or met is not None:
            break
        piece, met = matcher.push(text[at : at + size])
        shown, at = shown + piece, at + size
    if met is None:
        shown += matcher.flush()
    # The first moment at which any stop string is complete.
    ends = [(text.find(stop) + len(stop), stop) for stop in stops if stop in text]
    if met is None:
        assert not ends
        assert shown == text
    else:
        assert text.startswith(shown + met)
        assert met in stops
        assert not any(stop in shown for stop in stops)


def test_only_what_may_become_a_stop_string_is_held_back():
    """Text that cannot be part of a stop string is shown at once."""
    matcher = StopMatcher(["END"])
    assert matcher.push("abc") == ("abc", None)
    assert matcher.push("xE") == ("x", None)
    assert matcher.push("N") == ("", None)
    assert matcher.push("O") == ("ENO", None)
    assert matcher.push("E") == ("", None)
    assert matcher.flush() == "E"


def test_token_bytes_of_a_broken_character_are_its_bytes():
    """What log-probabilities call `bytes` adds up to the text's bytes."""
    ids = MODEL.encode("é🎠 w")
    assert b"".join(MODEL.token_bytes(i) for i in ids) == "é🎠 w".encode()


@pytest.mark.parametrize("template", ["{{ messages.__class__.__mro__ }}", "{{ ''.__class__.__base__ }}"])
def test_a_template_cannot_reach_python_s_insides(template: str):
    """Templates come with checkpoints and run in a sandbox: what lies outside is undefined to them."""
    with pytest.raises(TemplateRefused, match="unsafe"):
        TextModel(MODEL.tokenizer, template, {}, frozenset()).render_chat([])


def test_a_template_cannot_change_the_conversation():
    """Lists and dicts are immutable inside."""
    template = "{% set _ = messages.append({'role': 'x'}) %}"
    with pytest.raises(TemplateRefused, match="append"):
        TextModel(MODEL.tokenizer, template, {}, frozenset()).render_chat([])


def test_a_template_may_refuse_with_its_own_words():
    """`raise_exception` is how checkpoints say which conversations they take."""
    template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(TemplateRefused, match="roles must alternate"):
        TextModel(MODEL.tokenizer, template, {}, frozenset()).render_chat([])


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ messages[0].content.index('zzz') }}", "ValueError: substring"),
        ("{{ 1 // (messages | length - 1) }}", "ZeroDivisionError"),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "RecursionError"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ messages[0].nothing.more }}", "has no attribute 'nothing'"),
    ],
)
def test_whatever_a_template_raises_it_does_not_take_the_conversation(template: str, said: str):
    """The fault is the checkpoint's or the conversation's, not this server's."""
    with pytest.raises(TemplateRefused, match=said):
        TextModel(MODEL.tokenizer, template, {}, frozenset()).render_chat([{"role": "user", "content": "hi"}])


def test_a_template_that_is_no_jinja_is_named_with_its_line():
    """At the start, not at the first chat."""
    with pytest.raises(TemplateBroken, match="line 2"):
        TextModel(MODEL.tokenizer, "fine\n{% if %}", {}, frozenset())


@pytest.mark.parametrize("template", ["{% for a in b %}" * 25 + "{% endfor %}" * 25, "{% if a %}" * 2000])
def test_a_template_that_python_cannot_compile_is_refused_at_the_start(template: str):
    """Python nests less deeply than Jinja."""
    with pytest.raises(TemplateBroken, match="chat template: "):
        TextModel(MODEL.tokenizer, template, {}, frozenset())


@pytest.mark.parametrize("content", ['{"a":', "[]"])
def test_a_damaged_file_of_the_checkpoint_is_named(tmp_path: Path, content: str):
    """One line, at the start."""
    MODEL.tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(TokenizerMissing, match=r"tokenizer_config\.json: not"):
        TextModel.load(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        '{"eos_token_id": 99999}',
        '{"eos_token_id": "x"}',
        '{"eos_token_id": [1, 2.5]}',
        '{"eos_token_id": true}',
        '{"temperature": 9}',
        '{"top_p": 0}',
        '{"top_k": 2.5}',
        '{"min_p": "a"}',
        '{"repetition_penalty": NaN}',
    ],
)
def test_what_a_checkpoint_must_not_recommend_is_named(tmp_path: Path, content: str):
    """At the start, and not with every request, which could not help it."""
    MODEL.tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"vocab_size": 300}')
    (tmp_path / "generation_config.json").write_text(content)
    name = content.split('"')[1]
    with pytest.raises(TokenizerMissing, match=rf"generation_config\.json: {name}"):
        TextModel.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("tokenizer_config.json", '{"chat_template": 5}', "chat_template must be"),
        ("tokenizer_config.json", '{"chat_template": [5]}', "chat_template must be"),
        ("tokenizer_config.json", '{"chat_template": [{"foo": 1}]}', "chat_template must be"),
        ("tokenizer_config.json", '{"chat_template": [{"name": "default", "template": 5}]}', "chat_template must be"),
        ("tokenizer_config.json", '{"eos_token": 5}', "eos_token must be"),
        ("tokenizer_config.json", '{"bos_token": {"a": 1}}', "bos_token must be"),
        ("chat_template.jinja", "\xff", "utf-8"),  # in Latin-1, which is no UTF-8
    ],
)
def test_what_a_file_of_the_checkpoint_cannot_say_is_named_with_the_file(
    tmp_path: Path, name: str, content: str, said: str
):
    """Whatever JSON it is."""
    MODEL.tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / name).write_text(content, encoding="latin-1")
    with pytest.raises((TokenizerMissing, TemplateBroken), match=rf"{name}: .*{said}"):
        TextModel.load(tmp_path)


def test_a_model_without_a_template_says_what_to_use_instead():
    """The refusal names the other route."""
    with pytest.raises(TemplateRefused, match="/v1/completions"):
        TextModel(MODEL.tokenizer, None, {}, frozenset()).render_chat([])


def test_the_checkpoint_s_own_sampling_defaults_fill_what_a_request_leaves_open(tmp_path: Path):
    """generation_config.json is honoured; what a request says beats it."""
    MODEL.tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20, "eos_token_id": [1, 2]}')
    text = TextModel.load(tmp_path)
    assert text.eos_token_ids == {1, 2}
    silent = SamplingFields().sampling(5, text.eos_token_ids, None, text.sampling_defaults)
    assert (silent.temperature, silent.top_k, silent.top_p) == (0.6, 20, 1.0)
    spoken = SamplingFields(temperature=0.0, top_k=0).sampling(5, text.eos_token_ids, None, text.sampling_defaults)
    assert (spoken.temperature, spoken.top_k) == (0.0, 0)
