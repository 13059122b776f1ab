"""The training text: conversations written by a script from a seed, one file per kind. Nothing comes from outside.

writer.py         the seeded choices, the roughness of typed prompts, the split that keeps prompts back for tests
chat.py           greetings, what the model is, what it can and cannot do
engine_topics.py  what a server for language models is made of, in sentences    engine_talk.py  joins them
plots.py          what happens in a story                                       stories.py      tells it
fact_tables.py    what is true                                                  facts.py        asks about it
arithmetic.py  programs.py  markdown.py  poems.py  echoes.py                    one kind each
conversations.py  puts exchanges in a row: follow-ups, memory, system prompts
"""
