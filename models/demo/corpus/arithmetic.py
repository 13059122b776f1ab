"""Counting and one-digit arithmetic. Owns every number the model is taught; what it was not taught it is taught to refuse."""

from models.demo.corpus.fact_tables import COUNT_WORDS
from models.demo.corpus.writer import Exchange, Writer, capital, numbered

TOP = 120  # counting stays below this
COUNT_ASKS = (
    "Count from {a} to {b}.", "Count {a} to {b}.", "Count up from {a} to {b}.", "Give me the numbers from {a} to {b}.",
    "List the numbers from {a} to {b}.", "Say the numbers {a} to {b}.", "Write the numbers from {a} to {b}.",
    "I want the numbers from {a} to {b}.", "numbers {a} to {b}", "Start at {a} and count to {b}.",
)  # fmt: skip
DOWN_ASKS = (
    "Count down from {a} to {b}.", "Count backwards from {a} to {b}.", "Count from {a} down to {b}.",
    "Count from {a} to {b}.", "Do a countdown from {a} to {b}.", "Give me the numbers from {a} down to {b}.",
    "Countdown from {a} to {b}.",
)  # fmt: skip
STEP_ASKS = (
    "Count by {step} from {a} to {b}.", "Count in {step} from {a} to {b}.", "Count from {a} to {b} by {step}.",
    "Count from {a} to {b} in steps of {n}.", "Go from {a} to {b} in steps of {n}.",
)  # fmt: skip
STEPS = {2: "twos", 3: "threes", 5: "fives", 10: "tens"}
SIGNS = {"+": ("plus", "add"), "-": ("minus", "subtract"), "*": ("times", "multiply")}


def row(numbers: range) -> str:
    return ", ".join(map(str, numbers)) + "."


COUNTING_ASKS = (
    "Count to {b}.", "Count up to {b}.", "Tell me the numbers up to {b}.", "Count until {b}.", "Count from one to {b}.",
)  # fmt: skip


def counting(w: Writer) -> Exchange:
    b = w.randint(3, 30) if w.chance(0.7) else w.randint(31, TOP)
    a = 1 if w.chance(0.4) else w.randint(0, b - 2) if b <= 30 else w.randint(b - 30, b - 3)
    if a == 1 and w.chance(0.5):
        prompt = w.ask(COUNTING_ASKS, b=b)
    else:
        prompt = w.ask(COUNT_ASKS, a=a, b=b)
    text = row(range(a, b + 1))
    return Exchange("counting", prompt, w.pick(("", "", "Here you go: ")) + text, short=text)


COUNTING_DOWN_ASKS = (
    "Count down from {a}.", "Count backwards from {a}.", "Do a countdown from {a}.", "Countdown from {a}.",
)  # fmt: skip


def counting_down(w: Writer) -> Exchange:
    a = w.randint(3, 20) if w.chance(0.7) else w.randint(21, 60)
    b = w.pick((0, 1, 1)) if a <= 25 else w.randint(a - 20, a - 3)
    if b == 1 and w.chance(0.3):
        prompt = w.ask(COUNTING_DOWN_ASKS, a=a)
    else:
        prompt = w.ask(DOWN_ASKS, a=a, b=b)
    return Exchange("counting", prompt, row(range(a, b - 1, -1)))


COUNTING_BY_ASKS = ("Count by {step} to {b}.", "Count in {step} up to {b}.", "Count to {b} by {step}.")


def counting_by(w: Writer) -> Exchange:
    step = w.pick(list(STEPS))
    a = w.pick((0, step, step)) if step != 2 else w.pick((0, 1, 2, 2))
    b = a + step * w.randint(4, 10 if step == 10 else 15)
    if b > 100:
        b = 100 - (100 - a) % step
    if w.chance(0.3):
        a, b = step, step * 10
        prompt = w.ask(COUNTING_BY_ASKS, step=STEPS[step], b=b)
    else:
        prompt = w.ask(STEP_ASKS, step=STEPS[step], n=step, a=a, b=b)
    return Exchange("counting", prompt, row(range(a, b + 1, step)))


PARITY_ROW_ASKS = ("Is {n} even or odd?", "Is {n} an even number?", "Is {n} odd?", "Is the number {n} even or odd?")
PARITY_ROW_ASKS_2 = (
    "List the {which} numbers up to {b}.", "Give me the {which} numbers up to {b}.",
    "What are the {which} numbers up to {b}?", "Name the {which} numbers from 1 to {b}.",
)  # fmt: skip


def parity_row(w: Writer) -> Exchange:
    which, start = w.pick((("even", 2), ("odd", 1)))
    b = w.randint(5, 40)
    if w.chance(0.5):
        prompt = w.ask(PARITY_ROW_ASKS_2, which=which, b=b)
        return Exchange("counting", prompt, row(range(start, b + 1, 2)))
    n = w.randint(0, 99)
    prompt = w.ask(PARITY_ROW_ASKS, n=n)
    return Exchange("sums", prompt, f"{n} is {'odd' if n % 2 else 'even'}, because it ends in {n % 10}.")


def sums(w: Writer) -> Exchange:
    sign = w.pick("+-*")
    a, b = w.randint(0, 9), w.randint(0, 9)
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    word, _ = SIGNS[sign]
    left, right = (COUNT_WORDS[a], COUNT_WORDS[b]) if w.chance(0.15) else (str(a), str(b))
    shown = w.pick((sign, sign, "x", "×")) if sign == "*" else sign
    tight = f"{a}{shown}{b}" if w.chance(0.4) else f"{a} {shown} {b}"
    asks = [
        "What is {tight}?",
        "What's {tight}?",
        "{tight}",
        "{tight}=",
        "{tight} = ?",
        "{tight}?",
        "Calculate {tight}.",
        "How much is {tight}?",
        "What is {a} {word} {b}?",
        "How much is {a} {word} {b}?",
        "{a} {word} {b}",
        "Tell me what {a} {word} {b} is.",
        "Work out {tight}.",
        "Compute {tight}.",
        "What do you get for {tight}?",
        "What does {a} {word} {b} make?",
        "hey what is {tight}",
    ]
    asks += {
        "+": ["Add {a} and {b}.", "What is the sum of {a} and {b}?"],
        "-": ["Subtract {b} from {a}.", "What is the difference {a} minus {b}?"],
        "*": ["Multiply {a} by {b}.", "What is the product of {a} and {b}?"],
    }[sign]
    prompt = w.ask(asks, tight=tight, a=left, b=right, word=word)
    written = "×" if sign == "*" else sign
    return Exchange("sums", prompt, f"{a} {written} {b} = {value}.", short=f"{value}.", again=another_sum)


MANY_ASKS = (
    "Calculate these: {tasks}", "Work these out: {tasks}", "What are {tasks}?", "Solve these: {tasks}",
    "Give me the results of {tasks}.", "Calculate {tasks}.",
)  # fmt: skip


def many_sums(w: Writer) -> Exchange:
    """Several calculations at once, one line each."""
    chosen = [(w.randint(0, 9), w.pick("+-*"), w.randint(0, 9)) for _ in range(w.randint(2, 10))]
    tasks = ", ".join(f"{a} {sign} {b}" for a, sign, b in chosen)
    return Exchange("sums", w.ask(MANY_ASKS, tasks=tasks), "\n".join(equation(*task) for task in chosen))


def equation(a: int, sign: str, b: int) -> str:
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    return f"{a} {'×' if sign == '*' else sign} {b} = {value}"


def another_sum(w: Writer) -> str:
    a, b = w.randint(0, 9), w.randint(0, 9)
    return w.pick((f"{a} + {b} = {a + b}.", f"{a} × {b} = {a * b}."))


def addition(w: Writer) -> Exchange:
    a, b = w.randint(0, 9), w.randint(0, 9)
    return Exchange("sums", f"{a} + {b}", f"For example, {a} + {b} = {a + b}.")


TOO_LARGE_ASKS = (
    "What is {a} {sign} {b}?", "{a}{sign}{b}", "What is {a} {word} {b}?", "Calculate {a} {sign} {b}.",
    "{a} {sign} {b} = ?", "How much is {a} {word} {b}?", "what's {a}{sign}{b}",
)  # fmt: skip


def too_large(w: Writer) -> Exchange:
    a, b = w.randint(10, 999), w.randint(2, 999)
    sign = w.pick("+-*/")
    if w.chance(0.2):
        a, b, sign = w.randint(2, 9), w.randint(1, 9), "/"
    word = {**SIGNS, "/": ("divided by", "divide")}[sign][0]
    prompt = w.ask(TOO_LARGE_ASKS, a=a, b=b, sign=sign, word=word)
    answer = w.pick(
        (
            "That is beyond me: I only learned sums, differences and products of one-digit numbers.",
            "I would only guess, and I do not want to. I learned sums, differences and products of one-digit numbers, nothing larger.",
        )
    )
    return Exchange("limits", prompt, answer, short="I only know one-digit sums.")


def neighbours(w: Writer) -> Exchange:
    n = w.randint(1, 99)
    asks, answer = w.pick(
        (
            (
                ("What number comes after {n}?", "Which number is after {n}?", "What is the next number after {n}?"),
                f"After {n} comes {n + 1}.",
            ),
            (
                ("What number comes before {n}?", "Which number is before {n}?", "What is the number before {n}?"),
                f"Before {n} comes {n - 1}.",
            ),
        )
    )
    return Exchange("sums", w.ask(asks, n=n), answer)


def larger(w: Writer) -> Exchange:
    a, b = w.sample(range(100), 2)
    big = w.chance(0.6)
    asks = (
        (
            "Which is bigger, {a} or {b}?",
            "Which is larger, {a} or {b}?",
            "Which number is greater, {a} or {b}?",
            "What is more, {a} or {b}?",
        )
        if big
        else ("Which is smaller, {a} or {b}?", "Which number is less, {a} or {b}?")
    )
    prompt = w.ask(asks, a=a, b=b)
    low, high = sorted((a, b))
    return Exchange("sums", prompt, f"{high} is larger than {low}." if big else f"{low} is smaller than {high}.")


TIMES_TABLE_ASKS = (
    "Show me the multiplication table of {n}.", "Write the times table for {n}.", "Give me the {n} times table.",
    "What is the multiplication table of {n}?", "Make a multiplication table for {n}.",
)  # fmt: skip


def times_table(w: Writer) -> Exchange:
    n = w.randint(1, 10)
    prompt = w.ask(TIMES_TABLE_ASKS, n=n)
    if w.chance(0.5):
        lines = [f"{k} × {n} = {k * n}" for k in range(1, 11)]
        return Exchange("sums", prompt, f"Here is the times table for {n}:\n\n{numbered(lines)}")
    rows = "\n".join(f"| {k} | {k * n} |" for k in range(1, 11))
    return Exchange(
        "tables", prompt, f"Here is the times table for {n}:\n\n| Number | Times {n} |\n| --- | --- |\n{rows}"
    )


NUMBER_WORDS_ASKS = (
    "How do you write {n} as a word?", "Write {n} in letters.", "Spell the number {n}.", "What is {n} in words?",
)  # fmt: skip


def number_words(w: Writer) -> Exchange:
    n = w.randint(0, 10)
    prompt = w.ask(NUMBER_WORDS_ASKS, n=n)
    return Exchange("sums", prompt, f"{n} is written {COUNT_WORDS[n]}.", short=f"{capital(COUNT_WORDS[n])}.")


MAKERS = (
    (counting, 18),
    (counting_down, 5),
    (counting_by, 3),
    (parity_row, 2),
    (sums, 36),
    (many_sums, 12),
    (too_large, 4),
    (neighbours, 1),
    (larger, 1),
    (times_table, 1),
    (number_words, 1),
)
