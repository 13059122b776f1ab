"""Meanings of request fields, for the OpenAPI document. A field means the same in every protocol that has it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

FIELD_TEXTS: Mapping[str, str] = MappingProxyType(
    {
        # Answer
        "model": "Name of the served model, which is the default. Another name is 404 `model_not_found`.",
        "messages": "Conversation, oldest message first.",
        "prompt": "Text or token ids to continue, or a list of these, each answered on its own.",
        "input": "Text of the user, or the whole conversation as items.",
        "instructions": "System message before the input.",
        "system": "System message.",
        "stream": "Send the answer as server-sent events while it is generated. Default: false.",
        "stream_options": "Options of a streamed answer, such as `include_usage`.",
        "max_tokens": "Limit of generated tokens. Default: the rest of the context; text completions: 16.",
        "max_completion_tokens": "Newer name of `max_tokens`.",
        "max_output_tokens": "Limit of generated tokens, reduced to the rest of the context.",
        "min_tokens": "Number of tokens before which the answer does not end. Default: 0.",
        "n": "Number of answers to one prompt. Default: 1.",
        "best_of": "Number of generated answers, of which the `n` most likely are returned.",
        "echo": "Put the prompt before the answer. Default: false.",
        "stop": "Texts that end the answer. They are not part of it.",
        "stop_sequences": "Texts that end the answer. They are not part of it.",
        "stop_token_ids": "Token ids that end the answer.",
        "ignore_eos": "Continue after an end-of-sequence token. Default: false.",
        "truncation": "`auto` drops the oldest turns of an input that does not fit. Default: `disabled`.",
        # Sampling
        "temperature": "Randomness; 0 takes the most likely token. Default: that of the model, or 1.",
        "top_p": "Sample from the most likely tokens that together have this probability. Default: that of the model.",
        "top_k": "Sample from this many tokens; 0 for all. Default: that of the model.",
        "min_p": "Leave out tokens below this share of the highest probability. Default: that of the model.",
        "top_n_sigma": "Keep tokens with a logit within this many standard deviations of the largest; 0 for all.",
        "frequency_penalty": "Makes generated tokens less likely with each occurrence. Default: 0.",
        "presence_penalty": "Makes tokens that were generated less likely. Default: 0.",
        "repetition_penalty": "Above 1, makes tokens of the prompt and the answer less likely.",
        "logit_bias": "Addition to the logits of token ids.",
        "seed": "The same request with the same seed gives the same text. Default: random.",
        # Log-probabilities
        "logprobs": "Return log-probabilities of the generated tokens.",
        "top_logprobs": "Number of alternatives that are listed for each token.",
        "prompt_logprobs": "Return log-probabilities of the prompt's tokens, with this many alternatives.",
        "include": "Further contents of the answer, such as log-probabilities.",
        # Format
        "response_format": "Format of the content: text, any JSON object, or JSON that satisfies a schema.",
        "structured_outputs": "Format of the content: `json`, `json_object`, `regex`, `choice` or `grammar`.",
        "text": "Format of the text.",
        "output_config": "Reasoning effort and format of the answer.",
        "output_format": "Earlier name of `output_config.format`.",
        "skip_special_tokens": "Leave special tokens out of the text. Default: true.",
        "include_stop_str_in_output": "Keep the stop text at the end of the answer. Default: false.",
        # Tools
        "tools": "Functions that the model may call. The client runs them. Hosted tools are left out.",
        "tool_choice": "Whether the answer may or must call a tool, and which one.",
        "parallel_tool_calls": "Allow several calls in one answer. Default: true.",
        "max_tool_calls": "Limit of built-in tools, of which there are none.",
        # Reasoning and template
        "reasoning": "Reasoning effort.",
        "reasoning_effort": "Reasoning effort for the chat template; `none` turns reasoning off where it can.",
        "thinking": "Reasoning: enabled with a budget of tokens, adaptive, or disabled.",
        "verbosity": "Length of the answer, for chat templates with this variable.",
        "thinking_token_budget": "Limit of the tokens of reasoning.",
        "chat_template_kwargs": "Further variables of the chat template.",
        "add_generation_prompt": "Render the beginning of an answer after the messages. Default: true.",
        "continue_final_message": "Continue the last message, which must be the assistant's. Default: false.",
        # Scheduling
        "service_tier": "Urgency: `priority` for a person who waits, `flex` for work that may be preempted.",
        "priority": "Order of requests of one key within a tier, lower first. Default: 0.",
        "deadline_ms": "Time from arrival to the last token. A request that cannot meet it ends with 504.",
        # Tokenizer
        "add_special_tokens": "Add the special tokens of the tokenizer. Default: true.",
        "tokens": "Token ids.",
        # Accepted only with the standard value, or without effect
        "store": "Nothing is stored. An answer to `true` has `store: false`.",
        "background": "Only false is supported.",
        "functions": "Only an empty list is supported; use `tools`.",
        "modalities": 'Only `["text"]` is supported.',
        "suffix": "Only an empty text is supported.",
        "thread": "Not supported: clients send the whole conversation after the error `thread_unsupported_request`.",
        "mcp_servers": "Left out, as hosted tools are.",
        "prediction": "Accepted; without effect on the answer.",
        "user": "Accepted; without effect on the answer.",
        "metadata": "Accepted; without effect on the answer.",
        "client_metadata": "Accepted; without effect on the answer.",
        "safety_identifier": "Accepted; without effect on the answer.",
        "prompt_cache_key": "Accepted; without effect on the answer.",
        "prompt_cache_retention": "Accepted; without effect on the answer.",
        "prompt_cache_options": "Accepted; without effect on the answer.",
        "cache_control": "Accepted; without effect on the answer.",
        "context_management": "Accepted; without effect on the answer.",
    }
)
