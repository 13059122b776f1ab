"""Short programs in fenced code blocks. Owns the snippets; each Python snippet is run by the tests."""

from dataclasses import dataclass

from models.demo.corpus.writer import Exchange, Writer


@dataclass(frozen=True)
class Snippet:
    language: str
    shown: str  # the language's name in prose
    tasks: tuple[str, ...]  # "a function that ...", as people ask for it
    code: str  # {n} is a small number, {name} a greeting's addressee
    remark: str


ASKS = (
    "Write {task} in {lang}.", "Show me {task} in {lang}.", "How do I write {task} in {lang}?", "{task} in {lang}",
    "{lang} code for {task}", "Give me {task} in {lang}.", "Can you write {task} in {lang}?",
    "I need {task} in {lang}.", "Write some {lang} code for {task}.", "{lang} {task}",
    "Write a {lang} program: {task}.", "Create {task} using {lang}.", "Please write {task} in {lang}.",
)  # fmt: skip
BARE_ASKS = (
    "Write {task}.", "Show me {task}.", "Write code for {task}.", "How do I write {task}?", "Give me code for {task}.",
    "Can you code {task}?",
)  # fmt: skip
LEADS = (
    "Here is {task} in {lang}:", "Here you go, in {lang}:", "This {lang} code does it:",
    "Here is a short version in {lang}:",
)  # fmt: skip

SNIPPETS = (
    Snippet(
        "python",
        "Python",
        ("hello world", "a hello world program", "a program that prints a greeting"),
        'print("Hello, {name}!")',
        "The function `print` writes its text on the screen.",
    ),
    Snippet(
        "python",
        "Python",
        ("fibonacci", "the fibonacci numbers", "a fibonacci function", "a function for the fibonacci sequence"),
        "def fibonacci(count):\n    numbers = []\n    a, b = 0, 1\n    for _ in range(count):\n        numbers.append(a)\n        a, b = b, a + b\n    return numbers\n\n\nprint(fibonacci({n}))",
        "Each number is the sum of the two numbers before it.",
    ),
    Snippet(
        "python",
        "Python",
        ("fizzbuzz", "a fizzbuzz program", "the fizzbuzz game"),
        'for number in range(1, {n} + 1):\n    if number % 15 == 0:\n        print("FizzBuzz")\n    elif number % 3 == 0:\n        print("Fizz")\n    elif number % 5 == 0:\n        print("Buzz")\n    else:\n        print(number)',
        "The test for 15 comes first, because such a number is divisible by both 3 and 5.",
    ),
    Snippet(
        "python",
        "Python",
        ("a function that reverses a string", "a string reversal", "code to reverse a string", "reverse a string"),
        'def reverse(text):\n    return text[::-1]\n\n\nprint(reverse("{name}"))',
        "The slice `[::-1]` walks through the text backwards.",
    ),
    Snippet(
        "python",
        "Python",
        ("a factorial function", "the factorial of a number", "factorial"),
        "def factorial(n):\n    result = 1\n    for i in range(2, n + 1):\n        result *= i\n    return result\n\n\nprint(factorial({n}))",
        "The loop multiplies all numbers from 2 to n.",
    ),
    Snippet(
        "python",
        "Python",
        ("a prime number test", "a function that checks for primes", "a function that tests whether a number is prime"),
        "def is_prime(n):\n    if n < 2:\n        return False\n    for i in range(2, int(n**0.5) + 1):\n        if n % i == 0:\n            return False\n    return True\n\n\nprint(is_prime({n}))",
        "It is enough to test divisors up to the square root.",
    ),
    Snippet(
        "python",
        "Python",
        ("a palindrome test", "a function that checks for palindromes", "a palindrome checker"),
        'def is_palindrome(text):\n    letters = [c for c in text.lower() if c.isalpha()]\n    return letters == letters[::-1]\n\n\nprint(is_palindrome("Level"))',
        "A palindrome reads the same forwards and backwards.",
    ),
    Snippet(
        "python",
        "Python",
        ("a function that counts words", "a word counter", "code to count words"),
        'def count_words(text):\n    counts = {{}}\n    for word in text.lower().split():\n        counts[word] = counts.get(word, 0) + 1\n    return counts\n\n\nprint(count_words("one fish two fish"))',
        "The dictionary holds one counter for each word.",
    ),
    Snippet(
        "python",
        "Python",
        ("the sum of a list", "a function that sums a list", "code to add up a list"),
        "def total(numbers):\n    result = 0\n    for number in numbers:\n        result += number\n    return result\n\n\nprint(total([1, 2, {n}]))",
        "Python also has the built-in function `sum`.",
    ),
    Snippet(
        "python",
        "Python",
        (
            "a function that finds the largest number",
            "the maximum of a list",
            "code to find the largest number in a list",
        ),
        "def largest(numbers):\n    best = numbers[0]\n    for number in numbers:\n        if number > best:\n            best = number\n    return best\n\n\nprint(largest([3, {n}, 4]))",
        "Python also has the built-in function `max`.",
    ),
    Snippet(
        "python",
        "Python",
        ("a countdown", "a countdown loop", "a loop that counts down"),
        'for number in range({n}, 0, -1):\n    print(number)\nprint("Go!")',
        "The third argument of `range` is the step.",
    ),
    Snippet(
        "python",
        "Python",
        ("a list of even numbers", "code for the even numbers", "a list comprehension"),
        "evens = [number for number in range({n}) if number % 2 == 0]\nprint(evens)",
        "This is a list comprehension.",
    ),
    Snippet(
        "python",
        "Python",
        ("a simple class", "a class for a dog", "an example of a class"),
        'class Dog:\n    def __init__(self, name):\n        self.name = name\n\n    def speak(self):\n        return self.name + " says woof"\n\n\nprint(Dog("{name}").speak())',
        "The method `__init__` runs when a new dog is made.",
    ),
    Snippet(
        "python",
        "Python",
        ("code that reads a file", "a program that reads a file", "a file reader"),
        'from pathlib import Path\n\nfor line in Path("notes.txt").read_text().splitlines():\n    print(line)',
        "It prints the file line by line.",
    ),
    Snippet(
        "python",
        "Python",
        ("a bubble sort", "a sorting function", "bubble sort"),
        "def bubble_sort(items):\n    items = list(items)\n    for end in range(len(items) - 1, 0, -1):\n        for i in range(end):\n            if items[i] > items[i + 1]:\n                items[i], items[i + 1] = items[i + 1], items[i]\n    return items\n\n\nprint(bubble_sort([3, {n}, 1]))",
        "After each round the largest remaining item is in its place.",
    ),
    Snippet(
        "python",
        "Python",
        ("a function that adds two numbers", "an add function", "a function to add numbers"),
        "def add(a, b):\n    return a + b\n\n\nprint(add(2, {n}))",
        "The word `return` gives the result back.",
    ),
    Snippet(
        "python",
        "Python",
        ("a queue", "a continuous batching loop", "a toy scheduler"),
        'waiting = ["a", "b", "c", "d"]\nrunning = []\nwhile waiting or running:\n    while waiting and len(running) < 2:\n        running.append(waiting.pop(0))\n    print("step with", running)\n    running.pop(0)',
        "At every step, finished work leaves and waiting work joins.",
    ),
    Snippet(
        "javascript",
        "JavaScript",
        ("hello world", "a hello world program", "a greeting"),
        'console.log("Hello, {name}!");',
        "It prints its text on the console.",
    ),
    Snippet(
        "javascript",
        "JavaScript",
        ("fizzbuzz", "a fizzbuzz program"),
        'for (let i = 1; i <= {n}; i++) {{\n  if (i % 15 === 0) console.log("FizzBuzz");\n  else if (i % 3 === 0) console.log("Fizz");\n  else if (i % 5 === 0) console.log("Buzz");\n  else console.log(i);\n}}',
        "The test for 15 comes first.",
    ),
    Snippet(
        "javascript",
        "JavaScript",
        ("a function that reverses a string", "reverse a string", "code to reverse a string"),
        'function reverse(text) {{\n  return [...text].reverse().join("");\n}}\n\nconsole.log(reverse("{name}"));',
        "The text becomes a list, is reversed and is joined again.",
    ),
    Snippet(
        "javascript",
        "JavaScript",
        ("fibonacci", "the fibonacci numbers", "a fibonacci function"),
        "function fibonacci(count) {{\n  const numbers = [0, 1];\n  while (numbers.length < count) {{\n    numbers.push(numbers.at(-1) + numbers.at(-2));\n  }}\n  return numbers.slice(0, count);\n}}\n\nconsole.log(fibonacci({n}));",
        "Each number is the sum of the two numbers before it.",
    ),
    Snippet(
        "javascript",
        "JavaScript",
        ("code that reads a stream", "a function that reads server-sent events", "a listener for server-sent events"),
        'const source = new EventSource("/events");\nsource.onmessage = (event) => {{\n  console.log(event.data);\n}};',
        "The browser calls the function for each message.",
    ),
    Snippet(
        "bash",
        "Bash",
        ("hello world", "a hello world script", "a greeting"),
        'echo "Hello, {name}!"',
        "The command `echo` prints its text.",
    ),
    Snippet(
        "bash",
        "Bash",
        ("a loop", "a for loop", "a loop that counts", "a script that counts"),
        'for i in $(seq 1 {n}); do\n  echo "$i"\ndone',
        "The command `seq` makes the numbers.",
    ),
    Snippet(
        "bash",
        "Bash",
        ("a script that counts files", "code to count files", "a file counter"),
        "ls | wc -l",
        "It lists the files and counts the lines.",
    ),
    Snippet(
        "bash",
        "Bash",
        ("a curl request", "a request with curl", "a call to the chat API"),
        'curl http://localhost:8000/v1/chat/completions \\\n  -H "Content-Type: application/json" \\\n  -d \'{{"messages": [{{"role": "user", "content": "Hello"}}]}}\'',
        "It sends one message and prints the answer as JSON.",
    ),
    Snippet(
        "sql",
        "SQL",
        ("a select query", "a simple query", "a query that reads a table"),
        "SELECT name, city\nFROM people\nWHERE age > {n}\nORDER BY name;",
        "It lists people above an age, in order of their names.",
    ),
    Snippet(
        "sql",
        "SQL",
        ("a create table statement", "a table definition", "code to create a table"),
        "CREATE TABLE people (\n  id INTEGER PRIMARY KEY,\n  name TEXT NOT NULL,\n  age INTEGER\n);",
        "Each row has a number, a name and an age.",
    ),
    Snippet(
        "sql",
        "SQL",
        ("a query that counts rows", "a count query", "a group by query"),
        "SELECT city, COUNT(*) AS people\nFROM people\nGROUP BY city;",
        "It counts the people in each city.",
    ),
    Snippet(
        "html",
        "HTML",
        ("a simple page", "a web page", "a hello world page"),
        "<!doctype html>\n<html>\n  <body>\n    <h1>Hello, {name}!</h1>\n  </body>\n</html>",
        "Save it as a file and open it in a browser.",
    ),
    Snippet(
        "json",
        "JSON",
        ("an example", "an example object", "a small object"),
        '{{\n  "name": "{name}",\n  "age": {n},\n  "friends": ["Ada", "Leo"]\n}}',
        "Names and texts stand in double quotes.",
    ),
    Snippet(
        "c",
        "C",
        ("hello world", "a hello world program"),
        '#include <stdio.h>\n\nint main(void) {{\n    printf("Hello, {name}!\\n");\n    return 0;\n}}',
        "Compile it and run it.",
    ),
    Snippet(
        "rust",
        "Rust",
        ("hello world", "a hello world program"),
        'fn main() {{\n    println!("Hello, {name}!");\n}}',
        "The exclamation mark shows that `println!` is a macro.",
    ),
)
NAMES = ("world", "world", "world", "Ada", "friend", "Carousel", "Leo")


def block(w: Writer, snippet: Snippet) -> str:
    code = snippet.code.format(n=w.pick((5, 7, 9, 10, 12, 15, 20, 30, 100)), name=w.pick(NAMES))
    return f"```{snippet.language}\n{code}\n```"


def program(w: Writer) -> Exchange:
    snippet = w.pick(SNIPPETS)
    task = w.pick(snippet.tasks)
    shown = w.pick(
        (
            snippet.shown,
            snippet.shown,
            snippet.shown.lower(),
            {"JavaScript": "js", "Bash": "shell"}.get(snippet.shown, snippet.shown),
        )
    )
    asks = BARE_ASKS if snippet.language == "python" and w.chance(0.3) else ASKS
    prompt = w.ask(asks, task=task, lang=shown)
    fence = block(w, snippet)
    lead = w.pick(LEADS).format(
        task=task if task.startswith(("a ", "an ", "the ", "code ")) else "the code", lang=snippet.shown
    )
    return Exchange("code", prompt, f"{lead}\n\n{fence}\n\n{snippet.remark}", short=fence, again=another)


def another(w: Writer) -> str:
    snippet = w.pick(SNIPPETS)
    return f"Here is something else, in {snippet.shown}:\n\n{block(w, snippet)}\n\n{snippet.remark}"


def python_program(w: Writer) -> Exchange:
    snippet = w.pick([one for one in SNIPPETS if one.language == "python"])
    return Exchange(
        "code", snippet.tasks[0], f"Here is an example in Python:\n\n{block(w, snippet)}\n\n{snippet.remark}"
    )


def anything(w: Writer) -> Exchange:
    shown, language = w.pick(
        (("Python", "python"), ("JavaScript", "javascript"), ("Bash", "bash"), ("SQL", "sql"), ("some", "python"))
    )
    prompt = w.ask(
        (
            "Show me {lang} code.",
            "Write {lang} code.",
            "Can you write {lang} code?",
            "Give me an example of {lang} code.",
            "Write a code block in {lang}.",
        )
        if shown != "some"
        else ("Show me some code.", "Write some code.", "Can you code?", "Can you write code?", "Write a program."),
        lang=shown,
    )
    snippet = w.pick([one for one in SNIPPETS if one.language == language])
    return Exchange(
        "code",
        prompt,
        f"Here is an example in {snippet.shown}:\n\n{block(w, snippet)}\n\n{snippet.remark}",
        short=block(w, snippet),
        again=another,
    )


MAKERS = ((program, 9), (anything, 1))
