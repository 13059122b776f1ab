// The ollama package for JavaScript.
import assert from "node:assert/strict";
import { Ollama } from "ollama";
import * as common from "./common.mjs";

const client = new Ollama({ host: common.URL });
const scripted = new Ollama({ host: common.SCRIPTED_URL });
const model = common.MODEL;
const messages = [{ role: "user", content: common.QUESTION }];

async function chat() {
  const answer = await client.chat({ model, messages });
  assert(answer.message.content && answer.done);
  const options = { num_predict: 2, seed: 1 };
  const cut = await client.chat({ model, messages, options });
  assert.deepEqual([cut.eval_count, cut.done_reason], [2, "length"]);
}

async function generate() {
  const prompt = common.QUESTION;
  assert((await client.generate({ model, prompt })).response);
  const parts = await client.generate({ model, prompt, stream: true });
  let text = "";
  for await (const part of parts) {
    text += part.response;
  }
  assert(text);
}

async function stream() {
  const parts = await client.chat({ model, messages, stream: true });
  let text = "";
  let isDone = false;
  for await (const part of parts) {
    text += part.message.content;
    isDone = part.done;
  }
  assert(text && isDone);
}

async function turns() {
  const model = common.SCRIPTED_MODEL;
  const messages = [];
  for (let answers = 0; answers < 3; answers++) {
    messages.push({ role: "user", content: common.COUNT_QUESTION });
    const { message } = await scripted.chat({ model, messages });
    assert.equal(message.content, common.counts(answers));
    messages.push(message);
  }
}

async function tools() {
  const model = common.SCRIPTED_MODEL;
  const messages = [{ role: "user", content: common.TOOL_QUESTION }];
  const parameters = {
    type: "object",
    properties: { city: { type: "string" } },
    required: ["city"],
  };
  const description = "Return the weather of a city.";
  const tools = [
    {
      type: "function",
      function: { name: "get_weather", description, parameters },
    },
  ];
  const first = await scripted.chat({ model, messages, tools });
  const [call] = first.message.tool_calls;
  assert.deepEqual(call.function.arguments, { city: "Rome" });
  messages.push(first.message);
  messages.push({
    role: "tool",
    tool_name: call.function.name,
    content: common.TOOL_RESULT,
  });
  const end = await scripted.chat({ model, messages, tools });
  assert(end.message.content.includes(common.TOOL_RESULT));
}

async function structured() {
  const format = {
    type: "object",
    properties: { city: { enum: ["Rome", "Oslo"] }, degrees: { enum: [17, 18] } },
    required: ["city", "degrees"],
    additionalProperties: false,
  };
  const options = { num_predict: common.MAX_TOKENS };
  const answer = await client.chat({ model, messages, format, options });
  common.checkForecast(JSON.parse(answer.message.content));
}

async function models() {
  assert.equal((await client.list()).models[0].model, model);
  assert.equal((await client.ps()).models[0].model, model);
  assert((await client.show({ model })).capabilities.includes("completion"));
  assert((await client.version()).version);
}

async function errors() {
  const unknown = common.UNKNOWN_MODEL;
  await common.checkError(
    () => client.chat({ model: unknown, messages }),
    unknown,
  );
  const options = { temperature: 9 };
  await common.checkError(
    () => client.chat({ model, messages, options }),
    "options.temperature",
  );
}

async function cancel() {
  const parts = await scripted.chat({
    model: common.SCRIPTED_MODEL,
    messages: [{ role: "user", content: common.ENDLESS_QUESTION }],
    stream: true,
  });
  for await (const part of parts) {
    assert(part.model);
    await common.waitForRunning(1);
    parts.abort();
    break;
  }
  await common.waitForRunning(0);
}

async function changedModels() {
  await common.checkError(() => client.pull({ model: "other" }), "/api/pull");
}

await common.runFeatures(
  chat,
  generate,
  stream,
  turns,
  tools,
  structured,
  models,
  errors,
  cancel,
);
await common.runLimits(changedModels);
