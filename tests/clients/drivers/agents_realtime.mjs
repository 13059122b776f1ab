// OpenAI's agents for JavaScript: realtime sessions over a WebSocket, with the settings for audio that they have.
import assert from "node:assert/strict";
import {
  OpenAIRealtimeWebSocket,
  RealtimeAgent,
  RealtimeSession,
  tool,
} from "@openai/agents-realtime";
import { z } from "zod";
import * as common from "./common.mjs";

const TIMEOUT = 60_000;

const getWeather = tool({
  name: "get_weather",
  description: "Return the weather of a city.",
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => {
    assert.equal(city, "Rome");
    return common.TOOL_RESULT;
  },
});

/** Call `use` with a connected session; its errors are collected in `failures`. */
async function withSession(use, { scripted = true, tools = [], model } = {}) {
  const base = scripted ? common.SCRIPTED_URL : common.URL;
  const served = scripted ? common.SCRIPTED_MODEL : common.MODEL;
  const url = `${base.replace("http", "ws")}/v1/realtime`;
  const agent = new RealtimeAgent({
    name: "agent",
    instructions: "Be brief.",
    tools,
  });
  const transport = new OpenAIRealtimeWebSocket({ url });
  const session = new RealtimeSession(agent, {
    transport,
    model: model ?? served,
    tracingDisabled: false,
  });
  const failures = [];
  const events = [];
  session.on("error", (error) => failures.push(JSON.stringify(error)));
  session.on("transport_event", (event) => events.push(event));
  await session.connect({ apiKey: "none", url });
  try {
    await use({ session, failures, events });
  } finally {
    session.close();
  }
}

/** Wait until `check` returns a truthy value, and return it. */
async function until(check, failures = []) {
  const deadline = performance.now() + TIMEOUT;
  for (;;) {
    const value = check();
    if (value) {
      return value;
    }
    assert(performance.now() < deadline, `timeout; errors: ${failures}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

const done = (events) => events.filter((each) => each.type === "response.done");

/** Send a message and return the texts of its answers, in the history of the session. */
async function ask({ session, failures, events }, question, answers = 1) {
  const before = done(events).length;
  session.sendMessage(question);
  await until(() => done(events).length >= before + answers, failures);
  assert.deepEqual(failures, []);
  return texts(session);
}

const texts = (session) =>
  session.history
    .filter((item) => item.type === "message" && item.role === "assistant")
    .map((item) => item.content.map((part) => part.text).join(""));

async function chat() {
  await withSession(
    async (talk) => {
      assert((await ask(talk, common.QUESTION)).at(-1));
    },
    { scripted: false },
  );
}

async function stream() {
  await withSession(async (talk) => {
    const [text] = await ask(talk, common.COUNT_QUESTION);
    const deltas = talk.events
      .filter((each) => each.type === "response.output_text.delta")
      .map((each) => each.delta);
    assert(deltas.length > 1);
    assert.equal(deltas.join(""), text);
  });
}

async function turns() {
  await withSession(async (talk) => {
    for (let answers = 0; answers < 3; answers++) {
      const found = await ask(talk, common.COUNT_QUESTION);
      assert.equal(found.at(-1), common.counts(answers));
    }
  });
}

async function tools() {
  await withSession(
    async (talk) => {
      const found = await ask(talk, common.TOOL_QUESTION, 2); // the call, and the answer with its result
      assert(found.at(-1).includes(common.TOOL_RESULT));
      const end = await ask(talk, common.COUNT_QUESTION);
      assert.equal(end.at(-1), common.counts(2, 1));
    },
    { tools: [getWeather] },
  );
}

async function errors() {
  await withSession(
    async ({ failures }) => {
      await until(() => failures.length);
      assert(failures[0].includes(common.UNKNOWN_MODEL), failures[0]);
    },
    { model: common.UNKNOWN_MODEL },
  );
}

async function cancel() {
  await withSession(async (talk) => {
    talk.session.sendMessage(common.ENDLESS_QUESTION);
    await until(() =>
      talk.events.some((each) => each.type === "response.output_text.delta"),
    );
    talk.session.transport.sendEvent({ type: "response.cancel" }); // session.interrupt() acts on speech only
    await until(() => done(talk.events).length);
    await common.waitForRunning(0);
    const found = await ask(talk, common.COUNT_QUESTION);
    assert(found.at(-1).startsWith("Earlier answers: 1"));
  });
}

await common.runFeatures(chat, stream, turns, tools, errors, cancel);
process.exit(0);
