"""The tokenizer: how it is trained from the corpus, and how a conversation becomes token ids with a loss mask.

A byte-level BPE, so any UTF-8 text survives a round trip; every digit is a token of its own, so that numbers are
spelled the same way everywhere. Three special tokens: the end of a text, and the start and end of a message.
"""

from collections.abc import Iterator, Sequence

from models.demo.corpus.conversations import Message, conversation
from models.demo.corpus.writer import Writer
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def train_tokenizer(seed: int, documents: int, vocab_size: int) -> Tokenizer:
    """Learn vocab_size pieces from the given number of conversations."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\d"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(seed, documents), trainer)
    return tokenizer


def texts(seed: int, documents: int) -> Iterator[str]:
    w = Writer(seed)
    for _ in range(documents):
        for message in conversation(w):
            yield message["role"] + "\n"
            yield message["content"]


def render(message: Message) -> tuple[str, str]:
    """A message as the chat template writes it, cut into its head and its body."""
    return f"{START}{message['role']}\n", f"{message['content']}{END}\n"


def encode(tokenizer: Tokenizer, messages: Sequence[Message]) -> tuple[list[int], list[bool]]:
    """Token ids of a conversation, and for each whether the model learns to write it: the assistant's words and the end
    token after them."""
    ids: list[int] = []
    learned: list[bool] = []
    for message in messages:
        head, body = (tokenizer.encode(part).ids for part in render(message))
        mine = message["role"] == "assistant"
        ids += head + body
        # The newline after the end token belongs to the template: the model stops before it.
        learned += [False] * len(head) + [mine] * (len(body) - 1) + [False]
    return ids, learned
