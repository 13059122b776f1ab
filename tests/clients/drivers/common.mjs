// Parts shared by the JavaScript drivers; see common.py, which has the same names. Drivers run as copies beside the
// node_modules of their client, where imports find it.
import assert from "node:assert/strict";

export const [URL, SCRIPTED_URL] = process.argv.slice(2);
export const [MODEL, SCRIPTED_MODEL, UNKNOWN_MODEL] = ["demo", "scripted", "no-such-model"];

export const QUESTION = "Count from 1 to 8.";
export const MAX_TOKENS = 500;
export const TOOL_RESULT = "18 degrees and cloudy";
export const TOOL_QUESTION =
  'What is the weather in Rome? @call get_weather {"city": "Rome"}';
export const ENDLESS_QUESTION = "@endless";
export const COUNT_QUESTION = "How far are we? @count";

const FREE_SECONDS = 10;

/** Call the function of each feature, which has its name, and print whether it has thrown. */
export async function runFeatures(...features) {
  await run(features, false);
}

/** Do the same with known limits, whose functions check that the server refuses them by name. */
export async function runLimits(...features) {
  await run(features, true);
}

async function run(features, limit) {
  for (const feature of features) {
    let detail = "";
    let ok = true;
    try {
      await feature();
    } catch (error) {
      ok = false;
      detail = String(error?.stack ?? error);
    }
    console.log(JSON.stringify({ feature: feature.name, ok, detail, limit }));
  }
}

/** Wait until the scripted server is answering `number` requests. */
export async function waitForRunning(number) {
  const deadline = performance.now() + 1000 * FREE_SECONDS;
  for (;;) {
    const metrics = await (await fetch(`${SCRIPTED_URL}/metrics`)).text();
    const running = metrics
      .split("\n")
      .filter((line) => line.startsWith("vllm:num_requests_running{"))
      .reduce((sum, line) => sum + Number(line.split(" ").at(-1)), 0);
    if (running === number) {
      return;
    }
    assert(
      performance.now() < deadline,
      `the server is answering ${running} requests instead of ${number}`,
    );
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Return the answer of the scripted model to `COUNT_QUESTION`. */
export function counts(answers, results = 0) {
  return `Earlier answers: ${answers}; results of tools: ${results}.`;
}

export function checkForecast(value) {
  assert.deepEqual(Object.keys(value).sort(), ["city", "degrees"]);
  assert(["Rome", "Oslo"].includes(value.city));
  assert([17, 18].includes(value.degrees));
}

/** Check that a call rejects with an error whose text contains `parts`. */
export async function checkError(call, ...parts) {
  await assert.rejects(call, (error) => {
    for (const part of parts) {
      assert(String(error).includes(part), `${error} does not contain ${part}`);
    }
    return true;
  });
}
