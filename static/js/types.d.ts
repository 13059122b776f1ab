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
  function: { name: string };
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
  continue_final_message?: boolean;
  add_generation_prompt?: boolean;
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  time_ms?: Record<string, number>;
}

/** Data of an event of an answer. */
export interface Chunk {
  choices?: { delta?: Delta; finish_reason?: string | null }[];
  usage?: Usage | null;
  error?: ErrorFields;
}

export interface Delta {
  content?: string | null;
  reasoning_content?: string | null;
  tool_calls?: CallPiece[];
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
export interface Timeline {
  choices: { index: number; intervals: Interval[] }[];
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
  pages: { total: number; held: number; cached: number; free: number; swapped: number };
  page_size: number;
  tokens_per_s: number;
  prefill_tokens_per_s: number;
  busy: number;
  step_ms: number;
  preemptions: Record<Mechanism, number>;
  prefix_hit_rate: number;
  batch: { decode: number; prefill_tokens: number };
  requests_finished: number;
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

/** A tool call of an answer. `arguments` is the text of a JSON object; the user writes the result. */
export interface ToolCall {
  id: string;
  name: string;
  arguments: string;
  result?: string;
}

/** A message of a conversation. Times are in ms since 1970, durations in ms. */
export interface Message {
  id: string;
  /** Id of the message that it follows; null at the beginning. */
  parent?: string | null;
  role: "user" | "assistant";
  content: string;
  created: number;
  model?: string;
  state?: "streaming" | "done" | "stopped" | "error";
  error?: MessageError | null;
  finish?: string;
  usage?: Usage;
  /** Id of the answer's stream and of its last received event. */
  stream?: string | null;
  last?: string | null;
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
}

export interface Conversation {
  id: string;
  title: string;
  created: number;
  updated: number;
  system: string;
  model: string;
  sampling: Sampling;
  tools?: Tool[];
  /** Whether the answer to a message must be a tool call. */
  requiresCall?: boolean;
  /** Id of the first message that is sent, if older ones are left out. */
  first?: string;
  /** For ids of messages, and "" for the beginning: the message after them that was read last. */
  chosen?: Record<string, string>;
  revision?: number;
  messages: Message[];
}

/** Row of a conversation in the database. The messages have rows of their own. */
export interface ConversationRow extends Omit<Conversation, "messages"> {
  revision: number;
  /** Position of the next message. */
  next: number;
  deleted?: undefined;
}

/** Row that replaces that of a deleted conversation. */
export interface Tombstone {
  id: string;
  revision: number;
  deleted: number;
}

export interface MessageRow extends Message {
  conversation: string;
  position: number;
}
