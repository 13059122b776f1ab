"""The demonstration model: its folder, its chat template, and its answers to held-out requests."""

import json
from pathlib import Path

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from safetensors import safe_open
from tokenizers import Tokenizer

from models.demo import judge as judging
from models.demo.corpus.conversations import conversation
from models.demo.corpus.programs import SNIPPETS
from models.demo.corpus.writer import Writer, is_held_out

FOLDER = Path(__file__).parents[2] / "models" / "demo"
EXPORTED = (
    "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "training.json", "loss.csv", "loss.png", "README.md",
)  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


@pytest.fixture(scope="module")
def speaker() -> judging.Speaker:
    return judging.Speaker(FOLDER)


def load(name: str) -> dict:
    return json.loads((FOLDER / name).read_text())


def test_layout_is_complete_and_small():
    """The folder contains a whole Hugging Face model in less than 12 MB."""
    sizes = [(FOLDER / name).stat().st_size for name in EXPORTED]
    assert sum(sizes) < 12e6


def test_weights_match_the_configuration():
    """Every weight is bfloat16, and the head is tied to the embedding instead of stored twice."""
    config = load("config.json")
    with safe_open(FOLDER / "model.safetensors", framework="pt") as weights:
        names = set(weights.keys())
        embedding = weights.get_slice("model.embed_tokens.weight").get_shape()
        assert {weights.get_slice(name).get_dtype() for name in names} == {"BF16"}
    assert embedding == [config["vocab_size"], config["hidden_size"]]
    assert config["tie_word_embeddings"]
    assert "lm_head.weight" not in names


def test_both_end_tokens_end_a_generation(tokenizer: Tokenizer):
    """generation_config.json names <|im_end|> and <|endoftext|>."""
    ends = [tokenizer.token_to_id(token) for token in ("<|im_end|>", "<|endoftext|>")]
    assert load("generation_config.json")["eos_token_id"] == ends


def test_card_states_licence_seed_and_limits():
    """The model card states the licence, how the model was made, and its limits."""
    card = (FOLDER / "README.md").read_text()
    training = load("training.json")
    steps = f"| Steps | {training['steps']} |"
    for words in ("license: apache-2.0", "Seed", "What it cannot do", "Train it again", steps):
        assert words in card


def test_chat_template_renders_in_a_plain_sandbox():
    """The template needs nothing but Jinja, without functions or filters that only transformers provides."""
    template = ImmutableSandboxedEnvironment().from_string(load("tokenizer_config.json")["chat_template"])
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    text = template.render(messages=messages, add_generation_prompt=True)
    assert text == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("text", ["42 + 17", "naïve café 東京 🦊", "a\tb\nc\r\n", "  two  spaces  ", "\x00\u200b"])
def test_tokenizer_returns_the_same_text(tokenizer: Tokenizer, text: str):
    """Any UTF-8 text survives a round trip."""
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_every_digit_is_a_token(tokenizer: Tokenizer):
    """A number is tokenized digit by digit in any position."""
    assert tokenizer.encode("2048").tokens == ["2", "0", "4", "8"]


def test_corpus_is_a_function_of_its_seed():
    """The same seed writes the same conversations, another seed writes others."""
    first, same, other = ([conversation(Writer(seed)) for _ in range(3)] for seed in (5, 5, 6))
    assert first == same
    assert first != other


def test_training_contains_no_held_out_question():
    """No user turn of the corpus is on the test side of the split."""
    w = Writer(3)
    requests = [message["content"] for _ in range(2000) for message in conversation(w) if message["role"] == "user"]
    assert not [prompt for prompt in requests if is_held_out(prompt)]


def test_taught_python_runs(capsys: pytest.CaptureFixture[str]):
    """Every Python program of the corpus that needs no file runs without an error."""
    for snippet in SNIPPETS:
        if snippet.language == "python" and "notes.txt" not in snippet.code:
            exec(compile(snippet.code.format(n=10, name="Ada"), "snippet", "exec"), {})
    assert "FizzBuzz" not in capsys.readouterr().err


# (kind, requests, minimum of good answers). The table in models/demo/README.md lists the good answers observed for the
# same requests, greedily and in float32. A minimum is two or three below that, because a near tie may differ on another
# processor.
REQUIREMENTS = (
    ("sums", 32, 30),
    ("counting", 32, 27),
    ("large sums refused", 32, 30),
    ("facts", 32, 30),
    ("explanations", 32, 30),
    ("stories", 32, 30),
    ("tables", 32, 30),
    ("lists", 32, 30),
    ("code blocks", 32, 27),
    ("the right program", 32, 27),
    ("echoes", 32, 20),
    ("haiku", 32, 29),
    ("what it is", 32, 30),
    ("out of range", 32, 30),
)


@pytest.mark.parametrize(("kind", "requests", "required"), REQUIREMENTS)
def test_held_out_requests_are_answered_well(speaker: judging.Speaker, kind: str, requests: int, required: int):
    """At least the required number of held-out requests is answered well, with a natural end."""
    good, judged = judging.judge(speaker, kind, requests)
    failed = [(case.messages[-1]["content"], reply.text) for case, reply, passed in judged if not passed]
    assert good >= required, failed


def test_remembers_the_conversation(speaker: judging.Speaker):
    """A mentioned name, favourite or pet is remembered, in held-out wordings."""
    assert judging.judge_memory(speaker, 32) >= 30


def test_greets_back(speaker: judging.Speaker):
    """An informal greeting is answered with a greeting."""
    greetings = ("hi", "hello there", "yo", "Good morning!", "hey", "Hello, I am new here.")
    replies = speaker.answer([[{"role": "user", "content": text}] for text in greetings], 60)
    assert all(reply.text.startswith(("Hello", "Hi")) for reply in replies), [reply.text for reply in replies]


def test_obeys_a_simple_system_prompt(speaker: judging.Speaker):
    """The answer has the style that the system prompt asks for: brief, in bullet points, or like a pirate."""
    question = {"role": "user", "content": "What is preemption?"}
    styles = ("Answer briefly.", "Answer in bullet points.", "You are a pirate.")
    brief, points, pirate = speaker.answer([[{"role": "system", "content": style}, question] for style in styles], 200)
    assert brief.text.count(".") == 1
    assert points.text.startswith("- ")
    assert pirate.text.startswith(("Arr", "Ahoy", "Aye"))


def test_calculates_with_one_digit(speaker: judging.Speaker):
    """Of all 300 plain questions about two digits nearly all are answered correctly: 300 were observed."""
    signs = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}
    pairs = [(a, sign, b) for sign in signs for a in range(10) for b in range(10)]
    expected = {f"What is {a} {sign} {b}?": f"= {signs[sign](a, b)}." for a, sign, b in pairs}
    replies = speaker.answer([[{"role": "user", "content": task}] for task in expected], 16)
    correct = [reply.text.endswith(value) for reply, value in zip(replies, expected.values(), strict=True)]
    assert sum(correct) >= 295
