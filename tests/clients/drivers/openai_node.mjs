// The openai library for JavaScript: chat completions and responses.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import * as common from "./common.mjs";

const options = { apiKey: "none", maxRetries: 0 };
const client = new OpenAI({ baseURL: `${common.URL}/v1`, ...options });
const scripted = new OpenAI({
  baseURL: `${common.SCRIPTED_URL}/v1`,
  ...options,
});
const messages = [{ role: "user", content: common.QUESTION }];
const model = common.MODEL;
const Forecast = z.object({
  city: z.enum(["Rome", "Oslo"]),
  degrees: z.union([z.literal(17), z.literal(18)]),
});

async function chat() {
  const answer = await client.chat.completions.create({ model, messages });
  assert(answer.choices[0].message.content);
  const response = await client.responses.create({
    model,
    input: common.QUESTION,
  });
  assert(response.output_text);
}

async function stream() {
  const chunks = await client.chat.completions.create({
    model,
    messages,
    stream: true,
  });
  let text = "";
  for await (const chunk of chunks) {
    text += chunk.choices[0]?.delta.content ?? "";
  }
  assert(text);
  const events = client.responses.stream({ model, input: common.QUESTION });
  assert((await events.finalResponse()).output_text);
}

async function turns() {
  const messages = [];
  const input = [];
  const question = { role: "user", content: common.COUNT_QUESTION };
  const model = common.SCRIPTED_MODEL;
  for (let answers = 0; answers < 3; answers++) {
    messages.push(question);
    input.push(question);
    // The messages and items of a stream go back too.
    const [answer, response] =
      answers === 1
        ? [
            await scripted.chat.completions
              .stream({ model, messages })
              .finalChatCompletion(),
            await scripted.responses.stream({ model, input }).finalResponse(),
          ]
        : [
            await scripted.chat.completions.create({ model, messages }),
            await scripted.responses.create({ model, input }),
          ];
    messages.push(answer.choices[0].message);
    input.push(...response.output);
    assert.equal(messages.at(-1).content, common.counts(answers));
    assert.equal(response.output_text, common.counts(answers));
  }
}

async function tools() {
  const request = {
    model: common.SCRIPTED_MODEL,
    messages: [{ role: "user", content: common.TOOL_QUESTION }],
    tools: [
      {
        type: "function",
        function: {
          name: "get_weather",
          description: "Return the weather of a city.",
          parameters: {
            type: "object",
            properties: { city: { type: "string" } },
            required: ["city"],
          },
          parse: JSON.parse,
          function: ({ city }) => {
            assert.equal(city, "Rome");
            return common.TOOL_RESULT;
          },
        },
      },
    ],
  };
  for (const stream of [true, false]) {
    const run = scripted.chat.completions.runTools({ ...request, stream });
    assert((await run.finalContent()).includes(common.TOOL_RESULT));
    const question = { role: "user", content: common.COUNT_QUESTION };
    const end = await scripted.chat.completions
      .runTools({ ...request, messages: [...run.messages, question], stream })
      .finalContent();
    assert.equal(end, common.counts(2, 1));
  }
  const tools = [
    {
      type: "function",
      name: "get_weather",
      parameters: request.tools[0].function.parameters,
      strict: false,
    },
  ];
  const { model } = request;
  const input = [...request.messages];
  const first = await scripted.responses.create({ model, input, tools });
  const [call] = first.output;
  assert.deepEqual(JSON.parse(call.arguments), { city: "Rome" });
  input.push(call, {
    type: "function_call_output",
    call_id: call.call_id,
    output: common.TOOL_RESULT,
  });
  const end = await scripted.responses.create({ model, input, tools });
  assert(end.output_text.includes(common.TOOL_RESULT));
}

async function structured() {
  const answer = await client.chat.completions.parse({
    model,
    messages,
    max_tokens: common.MAX_TOKENS,
    response_format: zodResponseFormat(Forecast, "forecast"),
  });
  common.checkForecast(answer.choices[0].message.parsed);
  const response = await client.responses.parse({
    model,
    input: common.QUESTION,
    max_output_tokens: common.MAX_TOKENS,
    text: { format: zodTextFormat(Forecast, "forecast") },
  });
  common.checkForecast(response.output_parsed);
}

async function errors() {
  const create = (fields) =>
    client.chat.completions.create({ model, messages, ...fields });
  await common.checkError(
    () => create({ model: common.UNKNOWN_MODEL }),
    common.UNKNOWN_MODEL,
  );
  await common.checkError(() => create({ temperature: 9 }), "temperature");
}

async function cancel() {
  const chunks = await scripted.chat.completions.create({
    model: common.SCRIPTED_MODEL,
    messages: [{ role: "user", content: common.ENDLESS_QUESTION }],
    stream: true,
  });
  for await (const chunk of chunks) {
    assert(chunk.id);
    await common.waitForRunning(1);
    break;
  }
  await common.waitForRunning(0);
}

async function stored() {
  const fields = {
    model: common.SCRIPTED_MODEL,
    input: common.COUNT_QUESTION,
  };
  let previous = null;
  for (let answers = 0; answers < 3; answers++) {
    const response = await scripted.responses.create({
      ...fields,
      previous_response_id: previous,
    });
    assert.equal(response.output_text, common.counts(answers));
    previous = response.id;
  }
  const { data } = await scripted.responses.inputItems.list(previous);
  assert.equal(data[0].content[0].text, common.COUNT_QUESTION);
  const { id } = await scripted.conversations.create({});
  for (let answers = 0; answers < 2; answers++) {
    const response = await scripted.responses.create({
      ...fields,
      conversation: id,
    });
    assert.equal(response.output_text, common.counts(answers));
  }
  const input = common.QUESTION;
  let response = await client.responses.create({
    model,
    input,
    background: true,
  });
  while (["queued", "in_progress"].includes(response.status)) {
    await new Promise((resolve) => setTimeout(resolve, 20));
    response = await client.responses.retrieve(response.id);
  }
  assert(response.output_text);
  const kept = await client.chat.completions.create({
    model,
    messages,
    store: true,
  });
  const again = await client.chat.completions.retrieve(kept.id);
  assert.deepEqual(again.choices, kept.choices);
  const sent = await client.chat.completions.messages.list(kept.id);
  assert.equal(sent.data[0].content, common.QUESTION);
}

await common.runFeatures(
  chat,
  stream,
  turns,
  tools,
  structured,
  errors,
  cancel,
  stored,
);
