"""Lists, steps and tables in Markdown. Owns their contents and their form: every table has a header and a separator row."""

from models.demo.corpus.fact_tables import ANIMALS, CAPITALS, COLOURS, LANGUAGES, MONTHS
from models.demo.corpus.writer import Exchange, Writer, bullets, capital, listing, numbered

LISTS = {
    "shopping list": (
        "bread", "butter", "milk", "eggs", "apples", "cheese", "rice", "tomatoes", "onions", "tea", "coffee", "honey",
        "carrots", "flour",
    ),
    "packing list": (
        "a warm coat", "two pairs of socks", "a toothbrush", "a book", "a camera", "a raincoat", "good shoes", "a map",
        "a towel", "a bottle of water",
    ),
    "to-do list": (
        "Water the plants.", "Answer two letters.", "Clean the kitchen.", "Call a friend.", "Buy bread.",
        "Go for a walk.", "Repair the bicycle.", "Read a chapter.",
    ),
    "list of hobbies": (
        "reading", "painting", "hiking", "cooking", "chess", "gardening", "swimming", "photography", "singing",
        "knitting",
    ),
    "list of fruits": ("apple", "pear", "banana", "cherry", "lemon", "orange", "plum", "grape", "melon", "peach"),
    "list of vegetables": (
        "carrot", "potato", "onion", "tomato", "cabbage", "spinach", "leek", "pumpkin", "bean", "pea",
    ),
    "list of instruments": (
        "piano", "violin", "flute", "guitar", "drum", "trumpet", "harp", "cello", "clarinet", "organ",
    ),
    "list of jobs": (
        "baker", "teacher", "doctor", "gardener", "carpenter", "sailor", "painter", "engineer", "farmer", "cook",
    ),
    "list of sports": (
        "football", "tennis", "swimming", "rowing", "running", "cycling", "climbing", "skiing", "basketball", "fencing",
    ),
}  # fmt: skip
TIPS = {
    "sleep better": (
        "Go to bed at the same time every day.", "Keep the room dark and cool.",
        "Put the phone away an hour before bed.", "Do not drink coffee in the evening.",
        "Read a few pages of a calm book.",
    ),
    "learn a language": (
        "Learn ten new words every day.", "Listen to songs in that language.",
        "Speak from the first day, even with mistakes.", "Read short and easy stories.",
        "Repeat old words once a week.",
    ),
    "learn to program": (
        "Begin with very small programs.", "Read code that others have written.", "Change one thing at a time.",
        "Run your program often.", "Explain your code to a friend.",
    ),
    "save energy": (
        "Turn off the light when you leave.", "Take shorter showers.", "Put a lid on the pot.",
        "Dry clothes in the wind.", "Unplug what you do not use.",
    ),
    "make friends": (
        "Say hello first.", "Ask questions and listen.", "Remember names.", "Offer to help.",
        "Be patient, because friendship takes time.",
    ),
    "relax": (
        "Breathe slowly and count to ten.", "Go for a walk under trees.", "Drink a cup of tea.",
        "Listen to quiet music.", "Write down what worries you.",
    ),
    "write a good story": (
        "Begin with somebody who wants something.", "Put something in the way.", "Let your hero make a choice.",
        "Use small, exact details.", "Stop when the story is told.",
    ),
    "make a server fast": (
        "Keep the batch full at every step.", "Share the pages of common prefixes.", "Read long prompts in chunks.",
        "Stream every token at once.", "Measure before you change anything.",
    ),
}  # fmt: skip
RECIPES = {
    "make tea": (
        "Boil fresh water.", "Put a spoonful of tea into the pot.", "Pour the hot water over it.", "Wait four minutes.",
        "Pour the tea into a cup and enjoy it.",
    ),
    "make a sandwich": (
        "Take two slices of bread.", "Spread butter on them.", "Add cheese and tomato.", "Put the slices together.",
        "Cut the sandwich in half.",
    ),
    "plant a seed": (
        "Fill a pot with soil.", "Make a small hole with your finger.", "Put the seed into it and cover it.",
        "Water it gently.", "Put the pot in a sunny place and wait.",
    ),
    "make pancakes": (
        "Mix flour, milk and two eggs.", "Let the batter rest for ten minutes.", "Melt some butter in a pan.",
        "Pour in a thin layer of batter.", "Turn the pancake when it is golden.",
    ),
    "boil an egg": (
        "Boil water in a small pot.", "Put the egg in with a spoon.", "Wait six minutes.",
        "Hold the egg under cold water.", "Peel it and add a little salt.",
    ),
    "fold a paper plane": (
        "Fold a sheet of paper in half lengthwise.", "Fold two corners to the middle line.",
        "Fold the sloping edges to the middle again.", "Fold it in half, with the folds inside.",
        "Bend the wings down and let it fly.",
    ),
    "make soup": (
        "Chop an onion and two carrots.", "Fry them gently in some oil.", "Add water and a little salt.",
        "Let the soup simmer for twenty minutes.", "Taste it and serve it hot.",
    ),
    "wrap a present": (
        "Put the box on the paper.", "Cut the paper so that it goes all the way round.",
        "Fold it over and fix it with tape.", "Fold in the ends neatly.", "Tie a ribbon around it.",
    ),
}  # fmt: skip
COLUMNS = {
    "animals": (("Animal", "Legs", "Food"), [(capital(name), str(row[3]), row[4]) for name, row in ANIMALS.items()]),
    "baby animals": (("Animal", "Young"), [(capital(name), row[2]) for name, row in ANIMALS.items()]),
    "capitals": (("Country", "Capital"), [(capital(country), city) for country, city in CAPITALS.items()]),
    "countries and capitals": (
        ("Country", "Capital"),
        [(capital(country), city) for country, city in CAPITALS.items()],
    ),
    "months": (("Month", "Days"), [(month, str(days)) for month, days in MONTHS.items()]),
    "colours": (("Thing", "Colour"), [(capital(thing), shade) for thing, shade in COLOURS.items()]),
    "translations": (
        ("English", *LANGUAGES),
        [(word, *(words[word] for words in LANGUAGES.values())) for word in LANGUAGES["French"]],
    ),
    "words in three languages": (
        ("English", *LANGUAGES),
        [(word, *(words[word] for words in LANGUAGES.values())) for word in LANGUAGES["French"]],
    ),
    "request classes": (
        ("Class", "Who", "Order"),
        [
            ("interactive", "people who wait", "first"),
            ("standard", "plain API calls", "second"),
            ("batch", "background work", "last"),
        ],
    ),
    "latency terms": (
        ("Term", "Meaning"),
        [
            ("TTFT", "time to first token"),
            ("ITL", "time between two tokens"),
            ("TPOT", "average time per token"),
            ("throughput", "tokens per second"),
        ],
    ),
    "squares": (("Number", "Square"), [(str(k), str(k * k)) for k in range(1, 11)]),
    "planets": (
        ("Planet", "Place from the sun"),
        [
            (name, str(at))
            for at, name in enumerate(
                ("Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune"), 1
            )
        ],
    ),
}
ORDERED = {"months", "planets", "request classes", "squares"}


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


MAKE_TABLE_ASKS = (
    "Make a table of {what}.", "Show me a table of {what}.", "Create a table of {what}.",
    "Give me a table with {what}.", "Write a markdown table of {what}.", "table of {what}",
    "Can you make a table of {what}?", "I need a table of {what}.", "Draw a table of {what}.", "{what} as a table",
    "Make a markdown table with {what}.", "Put some {what} in a table.",
)  # fmt: skip


def make_table(w: Writer) -> Exchange:
    what = w.pick(list(COLUMNS))
    header, rows = COLUMNS[what]
    prompt = w.ask(MAKE_TABLE_ASKS, what=what)
    some = lambda w: rows if what in ORDERED else w.run_of(rows, min(len(rows), w.randint(4, 6)))  # noqa: E731
    lead = w.pick((f"Here is a table of {what}:", f"Here is a table of {what}:", "Here you go:"))
    return Exchange(
        "tables",
        prompt,
        f"{lead}\n\n{table(header, some(w))}",
        short=table(header, rows[:3]),
        again=lambda w: f"Here is another one:\n\n{table(header, some(w))}",
    )


ANY_TABLE_ASKS = (
    "Make a table.", "Show me a table.", "Can you make tables?", "Write a markdown table.", "Show me a table please.",
    "Give me an example of a table.", "I want to see a table.",
)  # fmt: skip


def any_table(w: Writer) -> Exchange:
    prompt = w.ask(ANY_TABLE_ASKS)
    header, rows = COLUMNS[w.pick(list(COLUMNS))]
    return Exchange("tables", prompt, f"Here is a table:\n\n{table(header, rows[:5])}", short=table(header, rows[:3]))


MAKE_LIST_ASKS = (
    "Write a {what}.", "Make a {what}.", "Give me a {what}.", "Can you write a {what}?", "I need a {what}.",
    "Show me a {what}.", "Create a {what} for me.", "{what} please", "Help me with a {what}.", "Write me a {what}.",
)  # fmt: skip


def make_list(w: Writer) -> Exchange:
    what = w.pick(list(LISTS))
    count = w.randint(4, 6)
    chosen = w.run_of(LISTS[what], count)
    prompt = w.ask(MAKE_LIST_ASKS, what=what)
    name = capital(what)
    return Exchange(
        "lists",
        prompt,
        f"**{name}**\n\n{bullets(chosen)}",
        short=bullets(chosen[:3]),
        points=tuple(chosen),
        again=lambda w: f"Here is another {what}:\n\n{bullets(w.run_of(LISTS[what], count))}",
    )


def shopping_list(w: Writer) -> Exchange:
    return Exchange("lists", "shopping list", f"**Shopping list**\n\n{bullets(w.run_of(LISTS['shopping list'], 5))}")


TIPS_ASKS = (
    "Give me tips to {aim}.", "How can I {aim}?", "How do I {aim}?", "Some tips to {aim}?", "Tell me how to {aim}.",
    "What helps to {aim}?", "I want to {aim}.", "Give me advice on how to {aim}.", "Write a list of tips to {aim}.",
    "tips to {aim}",
)  # fmt: skip


def tips(w: Writer) -> Exchange:
    aim = w.pick(list(TIPS))
    prompt = w.ask(TIPS_ASKS, aim=aim)
    chosen = w.run_of(TIPS[aim], w.randint(3, 5))
    return Exchange(
        "lists", prompt, f"Here are some tips to {aim}:\n\n{bullets(chosen)}", short=chosen[0], points=tuple(chosen)
    )


RECIPE_ASKS = (
    "How do I {aim}?", "How do you {aim}?", "Tell me how to {aim}.", "Explain how to {aim}.",
    "Give me the steps to {aim}.", "Write instructions to {aim}.", "how to {aim}", "Show me how to {aim}.",
    "What are the steps to {aim}?", "I want to {aim}.", "Teach me how to {aim}.",
)  # fmt: skip


def recipe(w: Writer) -> Exchange:
    aim = w.pick(list(RECIPES))
    prompt = w.ask(RECIPE_ASKS, aim=aim)
    steps = RECIPES[aim]
    return Exchange(
        "lists", prompt, f"Here is how to {aim}:\n\n{numbered(steps)}", short=" ".join(steps[:3]), points=steps
    )


FORMATTING_ASKS = (
    "What can you do with Markdown?", "Show me Markdown.", "Show me some Markdown formatting.", "Do you know Markdown?",
    "Use Markdown.", "Give me an example of Markdown.",
)  # fmt: skip


def formatting(w: Writer) -> Exchange:
    prompt = w.ask(FORMATTING_ASKS)
    fruit = w.run_of(LISTS["list of fruits"], 3)
    answer = (
        f"# A heading\n\nSome text with **bold** and *italic* words and a bit of `code`.\n\n{bullets(fruit)}\n\n> A quotation.\n\n"
        + table(("Fruit", "Number"), [(one, str(at)) for at, one in enumerate(fruit, 1)])
        + '\n\n```python\nprint("Hello, world!")\n```'
    )
    return Exchange(
        "tables", prompt, answer, short=f"I can write lists, tables and code, for example **bold** {listing(fruit)}."
    )


MAKERS = ((make_table, 5), (any_table, 1), (make_list, 4), (tips, 3), (recipe, 3), (formatting, 1))
