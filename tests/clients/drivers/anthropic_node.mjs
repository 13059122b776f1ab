// The anthropic library for JavaScript.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { z } from "zod";
import * as common from "./common.mjs";

const options = { apiKey: "none", maxRetries: 0 };
const client = new Anthropic({ baseURL: common.URL, ...options });
const scripted = new Anthropic({ baseURL: common.SCRIPTED_URL, ...options });
const max_tokens = common.MAX_TOKENS;
const fields = {
  model: common.MODEL,
  messages: [{ role: "user", content: common.QUESTION }],
  max_tokens,
};

async function chat() {
  const answer = await client.messages.create(fields);
  assert(answer.content[0].text);
  const { model, messages } = fields;
  const count = await client.messages.countTokens({ model, messages });
  assert(count.input_tokens);
}

async function stream() {
  const message = await client.messages.stream(fields).finalMessage();
  assert(message.content[0].text);
}

async function turns() {
  const messages = [];
  const request = { model: common.SCRIPTED_MODEL, messages, max_tokens };
  for (let answers = 0; answers < 3; answers++) {
    messages.push({ role: "user", content: common.COUNT_QUESTION });
    // The message of a stream goes back too, as a whole.
    const message =
      answers === 1
        ? await scripted.messages.stream(request).finalMessage()
        : await scripted.messages.create(request);
    messages.push(message);
    assert.equal(message.content[0].text, common.counts(answers));
  }
}

async function tools() {
  const get_weather = betaZodTool({
    name: "get_weather",
    description: "Return the weather of a city.",
    inputSchema: z.object({ city: z.string() }),
    run: ({ city }) => {
      assert.equal(city, "Rome");
      return common.TOOL_RESULT;
    },
  });
  const request = {
    model: common.SCRIPTED_MODEL,
    max_tokens,
    tools: [get_weather],
  };
  const question = { role: "user", content: common.COUNT_QUESTION };
  for (const stream of [true, false]) {
    const runner = scripted.beta.messages.toolRunner({
      ...request,
      messages: [{ role: "user", content: common.TOOL_QUESTION }],
      stream,
    });
    const first = await runner.runUntilDone();
    assert(first.content[0].text.includes(common.TOOL_RESULT));
    const end = await scripted.beta.messages.toolRunner({
      ...request,
      messages: [...runner.params.messages, question],
    });
    assert.equal(end.content[0].text, common.counts(2, 1));
  }
}

async function structured() {
  const schema = z.object({
    city: z.enum(["Rome", "Oslo"]),
    degrees: z.union([z.literal(17), z.literal(18)]),
  });
  const output_config = { format: zodOutputFormat(schema) };
  const answer = await client.messages.parse({ ...fields, output_config });
  common.checkForecast(answer.parsed_output);
}

async function errors() {
  const create = (more) => client.messages.create({ ...fields, ...more });
  await common.checkError(
    () => create({ model: common.UNKNOWN_MODEL }),
    common.UNKNOWN_MODEL,
  );
  await common.checkError(() => create({ temperature: 9 }), "temperature");
}

async function cancel() {
  const events = scripted.messages.stream({
    model: common.SCRIPTED_MODEL,
    messages: [{ role: "user", content: common.ENDLESS_QUESTION }],
    max_tokens: 100_000,
  });
  for await (const event of events) {
    assert(event.type);
    await common.waitForRunning(1);
    break;
  }
  await common.waitForRunning(0);
}

await common.runFeatures(
  chat,
  stream,
  turns,
  tools,
  structured,
  errors,
  cancel,
);
