// The AI SDK with a provider: `node ai_sdk.mjs URL SCRIPTED_URL PROVIDER`.
import assert from "node:assert/strict";
import { Output, generateText, isStepCount, streamText, tool } from "ai";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { z } from "zod";
import * as common from "./common.mjs";

const PROVIDERS = {
  openai: createOpenAI, // responses
  anthropic: createAnthropic,
  "openai-compatible": (options) =>
    createOpenAICompatible({
      name: "carousel",
      supportsStructuredOutputs: true,
      ...options,
    }),
};
// The provider openai refers to earlier answers by the ids of their items.
const create = PROVIDERS[process.argv[4]];
const provider = create({ baseURL: `${common.URL}/v1`, apiKey: "none" });
const scripted = create({
  baseURL: `${common.SCRIPTED_URL}/v1`,
  apiKey: "none",
})(common.SCRIPTED_MODEL);
const fields = {
  model: provider(common.MODEL),
  prompt: common.QUESTION,
  maxRetries: 0,
};

async function chat() {
  assert((await generateText(fields)).text);
}

async function stream() {
  let text = "";
  for await (const part of streamText(fields).textStream) {
    text += part;
  }
  assert(text);
}

async function turns() {
  const messages = [];
  for (let answers = 0; answers < 3; answers++) {
    messages.push({ role: "user", content: common.COUNT_QUESTION });
    const request = { model: scripted, messages, maxRetries: 0 };
    // The messages of a stream go back too.
    const result =
      answers === 1 ? streamText(request) : await generateText(request);
    assert.equal(await result.text, common.counts(answers));
    messages.push(...(await result.responseMessages));
  }
}

async function tools() {
  const get_weather = tool({
    description: "Return the weather of a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => {
      assert.equal(city, "Rome");
      return common.TOOL_RESULT;
    },
  });
  const request = {
    model: scripted,
    tools: { get_weather },
    stopWhen: isStepCount(3),
    maxRetries: 0,
  };
  const messages = [{ role: "user", content: common.TOOL_QUESTION }];
  const streamed = await streamText({ ...request, messages }).text;
  assert(streamed.includes(common.TOOL_RESULT), streamed);
  const whole = await generateText({ ...request, messages });
  assert(whole.text.includes(common.TOOL_RESULT), whole.text);
  messages.push(...whole.responseMessages, {
    role: "user",
    content: common.COUNT_QUESTION,
  });
  const end = await generateText({ ...request, messages });
  assert.equal(end.text, common.counts(2, 1));
}

async function structured() {
  const schema = z.object({
    city: z.enum(["Rome", "Oslo"]),
    degrees: z.union([z.literal(17), z.literal(18)]),
  });
  const output = Output.object({ schema });
  common.checkForecast((await generateText({ ...fields, output })).output);
}

async function errors() {
  await common.checkError(
    () => generateText({ ...fields, model: provider(common.UNKNOWN_MODEL) }),
    common.UNKNOWN_MODEL,
  );
  // The SDK itself limits the temperature that it sends to Anthropic's API.
  await common.checkError(() => generateText({ ...fields, topP: 9 }), "top_p");
}

async function cancel() {
  const controller = new AbortController();
  const { textStream } = streamText({
    model: scripted,
    prompt: common.ENDLESS_QUESTION,
    maxOutputTokens: 100_000,
    abortSignal: controller.signal,
  });
  for await (const part of textStream) {
    assert(part);
    await common.waitForRunning(1);
    break;
  }
  controller.abort();
  await common.waitForRunning(0);
}

async function stored() {
  let previous = null;
  for (let answers = 0; answers < 3; answers++) {
    const result = await generateText({
      model: scripted,
      prompt: common.COUNT_QUESTION,
      maxRetries: 0,
      providerOptions: { openai: { previousResponseId: previous } },
    });
    assert.equal(result.text, common.counts(answers));
    previous = result.providerMetadata.openai.responseId;
  }
}

const features = [chat, stream, turns, tools, structured, errors, cancel];
if (process.argv[4] === "openai") {
  features.push(stored);
}
await common.runFeatures(...features);
