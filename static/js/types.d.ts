// Objects that cross the border of the pages: JSON from the server, and records of the browser's database.

export type ClassName = "interactive" | "standard" | "batch";
export type Mechanism = "swap" | "partial" | "recompute";

/** An error as the server describes it. */
export interface ErrorFields {
  message: string;
  type?: string;
  code?: string | null;
  param?: string | null;
}

/** Body of /health while the model loads, or of a refused request. */
export interface ErrorBody {
  error?: Partial<ErrorFields>;
  loading?: Loading | null;
}

export interface Loading {
  what: string;
  done: number;
  total: number;
}

export interface Model {
  id: string;
  max_model_len?: number;
  service_tiers?: string[];
}

/** A message of a request. */
export interface Turn {
  role: string;
  content: string;
  reasoning_content?: string;
  tool_calls?: { id: string; type: "function"; function: { name: string; arguments: string } }[];
  tool_call_id?: string;
}

/** Definition of a tool, of which the page reads the name only. */
export interface Tool {
  type: "function";
  function: { name: string; description?: string; parameters?: object };
}

/** Tools of an MCP server as /v1/page/tools lists them. error: why there are none, or fewer than it has. */
export interface ServerTools {
  name: string;
  tools: ListedTool[];
  error: string | null;
}

export interface ListedTool {
  name: string;
  description: string;
  input_schema: object;
}

/** Tool of an MCP server that a conversation offers. tool: its definition, of which the name may be another one. */
export interface ServerTool {
  server: string;
  name: string;
  tool: Tool;
}

/** Piece of a tool call in a delta; only the first one of a call has its id and name. */
export interface CallPiece {
  index: number;
  id?: string;
  function?: { name?: string; arguments?: string };
}

export type SamplingValue = number | string[];
export type Sampling = Record<string, SamplingValue>;

/** Body of /v1/chat/completions. Sampling parameters are further fields. */
export interface AnswerRequest {
  model: string;
  messages: Turn[];
  stream: true;
  stream_options: { include_usage: true };
  service_tier: string;
  tools?: Tool[];
  tool_choice?: "required";
  /** Number of answers. */
  n?: number;
  continue_final_message?: boolean;
  add_generation_prompt?: boolean;
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  prompt_tokens_details?: { cached_tokens?: number };
  time_ms?: Record<string, number>;
}

/** Data of an event of an answer. */
export interface Chunk {
  choices?: { index?: number; delta?: Delta; finish_reason?: string | null }[];
  usage?: Usage | null;
  error?: ErrorFields;
}

export interface Delta {
  content?: string | null;
  reasoning_content?: string | null;
  tool_calls?: CallPiece[];
}

/** Change of a running request. */
export interface RequestChange {
  state?: "paused" | "running";
  service_tier?: "flex";
}

/** Status of a request, which the server sends in comments of the stream. */
export interface Status {
  state: "queued" | "running" | "paused";
  position?: number;
  cause?: string;
  by?: ClassName | null;
  mechanism?: Mechanism | null;
}

export interface Interval {
  phase: string;
  began_ms: number;
  ms: number;
  cause?: string;
  by?: ClassName | null;
  mechanism?: Mechanism;
  why?: string;
  /** Of one of several engines. */
  left_engine?: number;
  was_computing?: boolean;
  move_reason?: string;
  next_engine?: number | null;
}

/** Body of /v1/requests/{id}. */
/** Comparison of a prompt with an earlier answer (docs/protocols.md). */
export interface CacheNote {
  continues: string | null;
  kept_seconds: number | null;
  expected_tokens: number;
  reason: string | null;
  by: string | null;
  differs_at: number | null;
  before: string;
  after: string;
}

/** Tokens of a choice, the steps that yielded them, and its drafts by source. */
export interface Drafts {
  tokens: number;
  steps: number;
  drafted: Record<string, number>;
  accepted: Record<string, number>;
}

export interface Timeline {
  prompt_tokens: number;
  cached_tokens: number;
  cache: CacheNote | null;
  /** While it is queued: the time in which it probably starts. */
  wait_ms?: number;
  choices: { index: number; drafts: Drafts | null; intervals: Interval[] }[];
}

/** Ended request, of which the cache of an engine may have a part (/v1/page/warm). */
export interface WarmRequest {
  cached_tokens: number;
  tokens: number;
  /** Estimated time to the first token of a next message, and that without the cache; absent without an engine. */
  first_token_ms?: number;
  cold_first_token_ms?: number;
}

/** An event of /v1/engine/events (app/observe/live_feed.py). */
export interface Snapshot {
  /** Number of the engine, from 0, and how many there are. */
  engine: number;
  engines: number[];
  t: number;
  step: number;
  slots: (Slot | null)[];
  waiting: Record<ClassName, number>;
  paused: PausedRequest[];
  queue: QueuedRequest[];
  pages: { total: number; held: number; cached: number; free: number; swapped: number; kept: number; on_host: number };
  page_size: number;
  tokens_per_s: number;
  prefill_tokens_per_s: number;
  busy: number;
  step_ms: number;
  preemptions: Record<Mechanism, number>;
  prefix_hit_rate: number;
  batch: { decode: number; prefill_tokens: number };
  requests_finished: number;
  /** Of sequences in steps, since the engine started. */
  drafts: { steps: number; drafted: number; accepted: number };
  latency: Record<ClassName, Latency>;
}

/** Event `engine` of /v1/engine/events: an engine that is not ready. */
export interface EngineEvent {
  engine: number;
  engines: number[];
  phase: "loading" | "restarting" | "retrying" | "failed" | "stopped";
}

export interface Slot {
  request: string;
  class: ClassName;
  state: string;
  context: number;
  generated: number;
  pages: number;
  /** Tokens that its last step yielded. */
  step_tokens: number;
}

export interface PausedRequest {
  request: string;
  class: ClassName;
  by: ClassName | null;
  mechanism: Mechanism;
  context: number;
}

export interface QueuedRequest {
  request: string;
  class: ClassName;
  cause: string;
  waited: number;
}

/** Median and 99th percentile in ms, ended requests, and the share of them that met the objectives. */
export interface Latency {
  ttft_ms: [number | null, number | null];
  itl_ms: [number | null, number | null];
  requests: number;
  good: number | null;
}

export interface MessageError {
  message: string;
  code?: string | null;
  status?: number;
}

/** A tool call of an answer. `arguments` is the text of a JSON object; the user writes the result, or a tool gives it. */
export interface ToolCall {
  id: string;
  name: string;
  arguments: string;
  result?: string;
  /** When its tool was started; without a result the tool is running, or the page was closed. */
  startedAt?: number;
  /** Why its tool gave no result. */
  problem?: string;
}

/** Run of a call's tool, as the call shows it. text: a sentence. */
export interface CallRun {
  state: "ready" | "running" | "failed";
  text: string;
  run(always: boolean): void;
}

/** Text file of a message. tokens: if they could be counted. isTooLong: for the context of the model, even alone. */
export interface TextFile {
  name: string;
  text: string;
  tokens?: number;
  isTooLong?: boolean;
}

/** A message of a conversation. Times are in ms since 1970, durations in ms. */
export interface Message {
  id: string;
  /** Id of the message that it follows; null for a beginning. */
  parent: string | null;
  role: "user" | "assistant";
  content: string;
  created: number;
  files?: TextFile[];
  model?: string;
  state?: "streaming" | "done" | "stopped" | "error";
  error?: MessageError | null;
  finish?: string;
  usage?: Usage;
  /** Id of the answer's stream and of its last received event. */
  stream?: string | null;
  last?: string | null;
  /** Of several answers of one request: id of the first of them, and the number of this one. */
  run?: string;
  choice?: number;
  /** With which it was sampled, and the answer that it repeats with other settings. */
  seed?: number;
  sampling?: Sampling;
  replayOf?: string;
  /** Whether a reload interrupted the answer, so that its times are not all known. */
  resumed?: boolean;
  thinking?: string;
  thinkingAt?: number;
  thoughtMs?: number;
  calls?: ToolCall[];
  sentAt?: number;
  firstAt?: number;
  lastAt?: number;
  pieces?: number;
  pausedMs?: number;
  /** Whether the user has paused it. */
  paused?: boolean;
  /** Whether the user has let it give way to others. */
  later?: boolean;
}

export interface Settings {
  system: string;
  sampling: Sampling;
  tools?: Tool[];
  serverTools?: ServerTool[];
  /** Whether the answer to a message must be a tool call. */
  requiresCall?: boolean;
}

/** Settings under a name. */
export interface Preset extends Settings {
  name: string;
}

export interface Conversation extends Settings {
  id: string;
  title: string;
  created: number;
  updated: number;
  model: string;
  /** Id of the first message that is sent, if older ones are left out. */
  first?: string;
  /** Whether it is listed above the others. */
  pinned?: boolean;
  /** All messages of all branches. */
  messages: Message[];
  /** Parents of deleted messages, by id. */
  gone?: Record<string, string | null>;
  /** Ids of the children that were read last, by the id of their parent; "" for beginnings. */
  chosen?: Record<string, string>;
  /** Number of the last change of its row or of its messages in this browser. */
  changes?: number;
}

/** Version of a row. Of two versions the one with the higher revision is kept, or else with the greater writer. */
export interface Version {
  revision: number;
  writer: string;
  /** 1 while the server may lack it; absent otherwise. */
  unsent?: 1;
}

/** Row as the server keeps it (/v1/page/rows). value: JSON; null if it was deleted. */
export interface SharedRow {
  id: string;
  revision: number;
  writer: string;
  value: string | null;
}

/** Rows of the server that have changed after a number. last: number up to which they are complete. */
export interface SharedRows {
  data: SharedRow[];
  last: number;
  has_more: boolean;
  /** Name of all rows of a key, which is another one if the server has lost them. */
  epoch: string;
}

/** Row of a conversation in the database. Messages and choices have rows of their own. */
export interface ConversationRow extends Omit<Conversation, "messages" | "gone" | "chosen">, Version {
  changes: number;
  deleted?: undefined;
}

/** Row that replaces that of a deleted conversation. */
export interface Tombstone extends Version {
  id: string;
  changes: number;
  deleted: number;
}

export interface MessageRow extends Message, Version {
  conversation: string;
  deleted?: undefined;
}

/** Row that replaces that of a deleted message. */
export interface MessageTombstone extends Version {
  id: string;
  conversation: string;
  parent: string | null;
  deleted: number;
}

/** Row of the choices of a conversation, which stays in this browser. */
export interface ChoicesRow {
  id: string;
  chosen: Record<string, string>;
}

/** View of an answer in the open conversation. */
export interface AnswerDisplay {
  show(message: Message): void;
  status(status: Status): void;
  reconnecting(): void;
  offline(): void;
  retrying(error: { message: string }, at: number): void;
}

/** What the answers in progress need of the page. */
export interface AnswerPage {
  viewOf(message: Message): AnswerDisplay | null;
  changed(): void;
  ended(conversation: Conversation, messages: Message[]): void;
  announce(text: string, conversation: Conversation): void;
  onError(error: { message: string; status: number }): void;
}

/** Actions of the buttons of messages. */
export interface MessageActions {
  send(text: string): void;
  regenerate(id: string, count?: number): void;
  resume(id: string): void;
  edit(id: string, text: string): boolean;
  rewrite(id: string, text: string): boolean;
  goOnFrom(id: string, text: string): boolean;
  choose(id: string, step: number): void;
  removeBranch(id: string): void;
  replay(id: string): void;
  find(id: string): Message | undefined;
  retryNow(id: string): void;
  runOf(message: Message, index: number): CallRun | null;
  sendResults(id: string, results: (string | undefined)[]): boolean;
  leaveOut(id: string): void;
  startOver(): void;
  askKey(): void;
  timeline(stream: string): Promise<Timeline>;
}
