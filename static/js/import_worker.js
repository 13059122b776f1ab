// Worker that reads a file, and answers with the number of conversations; then it answers each index with a conversation.
import { readFile } from "./import.js";

let conversations = /** @type {import("./types.js").Conversation[]} */ ([]);

addEventListener("message", async ({ data }) => {
  if (typeof data === "number") return postMessage(conversations[data]);
  try {
    const { leftOut, ...read } = await readFile(data);
    conversations = read.conversations;
    postMessage({ count: conversations.length, leftOut });
  } catch (error) {
    postMessage({ error: /** @type {Error} */ (error).message });
  }
});
