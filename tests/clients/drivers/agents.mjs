// OpenAI's agents for JavaScript by responses, continued by the id of the last one (previousResponseId).
import assert from "node:assert/strict";
import { Agent, Runner, tool } from "@openai/agents-core";
import { OpenAIProvider } from "@openai/agents-openai";
import { z } from "zod";
import * as common from "./common.mjs";

const getWeather = tool({
  name: "get_weather",
  description: "Return the weather of a city.",
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => {
    assert.equal(city, "Rome");
    return common.TOOL_RESULT;
  },
});

/** Return a runner of a server, and an agent of its model. */
function agent({ scripted = true, model, ...fields } = {}) {
  const base = scripted ? common.SCRIPTED_URL : common.URL;
  const served = scripted ? common.SCRIPTED_MODEL : common.MODEL;
  const modelProvider = new OpenAIProvider({
    apiKey: "none",
    baseURL: `${base}/v1`,
    useResponses: true,
  });
  const runner = new Runner({ modelProvider, tracingDisabled: true });
  return {
    runner,
    agent: new Agent({ name: "agent", model: model ?? served, ...fields }),
  };
}

async function chat() {
  const one = agent({ scripted: false });
  assert((await one.runner.run(one.agent, common.QUESTION)).finalOutput);
}

async function stream() {
  const one = agent();
  const result = await one.runner.run(one.agent, common.COUNT_QUESTION, {
    stream: true,
  });
  let text = "";
  for await (const piece of result.toTextStream()) {
    text += piece;
  }
  await result.completed;
  assert.equal(text, common.counts(0));
}

async function turns() {
  const one = agent();
  let previousResponseId;
  for (let answers = 0; answers < 3; answers++) {
    const result = await one.runner.run(one.agent, common.COUNT_QUESTION, {
      previousResponseId,
    });
    assert.equal(result.finalOutput, common.counts(answers));
    previousResponseId = result.lastResponseId;
    assert(previousResponseId.startsWith("resp_"));
  }
}

async function tools() {
  const one = agent({ tools: [getWeather] });
  const result = await one.runner.run(one.agent, common.TOOL_QUESTION);
  assert(result.finalOutput.includes(common.TOOL_RESULT));
  const end = await one.runner.run(one.agent, common.COUNT_QUESTION, {
    previousResponseId: result.lastResponseId,
  });
  assert.equal(end.finalOutput, common.counts(2, 1));
}

async function structured() {
  const outputType = z.object({ city: z.string(), degrees: z.number() });
  const one = agent({ scripted: false, outputType });
  const result = await one.runner.run(one.agent, common.QUESTION);
  assert.deepEqual(Object.keys(result.finalOutput).sort(), ["city", "degrees"]);
}

async function errors() {
  const one = agent({ model: common.UNKNOWN_MODEL });
  await common.checkError(
    () => one.runner.run(one.agent, common.QUESTION),
    common.UNKNOWN_MODEL,
  );
}

await common.runFeatures(chat, stream, turns, tools, structured, errors);
process.exit(0);
