// Reading of JSON from elsewhere: a value of another type than expected counts as missing.

/** @param {unknown} value @returns {Record<string, any>} */
export const record = (value) => (typeof value === "object" && value && !Array.isArray(value) ? value : {});
/** @param {unknown} value @returns {any[]} */
export const list = (value) => (Array.isArray(value) ? value : []);
/** @param {unknown} value */
export const string = (value) => (typeof value === "string" ? value : "");
/** Returns an id, which is a text or a number, or null. @param {unknown} value */
export const idOf = (value) => (typeof value === "number" || string(value) ? String(value) : null);
/** Joins the texts among values as paragraphs. @param {unknown[]} values */
export const joined = (values) => values.map(string).filter(Boolean).join("\n\n");
/** Parses JSON; undefined if the text is none. @param {string} text @returns {any} */
export function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/**
 * Copies the fields that a sample names; "?" marks those that may be missing, and "*" is any field. A function in the sample
 * is a condition. Throws an Error for a field of another type than in the sample.
 * @param {any} value @param {any} sample @param {string} path @returns {any}
 */
export function alike(value, sample, path) {
  const isSame = typeof value === typeof sample && value !== null && Array.isArray(value) === Array.isArray(sample);
  if (typeof sample === "function" ? !sample(value) : !isSame || value === Infinity)
    throw new Error(`${path} is missing or invalid.`);
  if (Array.isArray(sample)) return list(value).map((each, i) => alike(each, sample[0], `${path}[${i}]`));
  if (typeof sample !== "object") return value;
  const fields =
    sample["*"] === undefined ? Object.entries(sample) : Object.keys(value).map((key) => [key, sample["*"]]);
  const present = fields.map(([name, inner]) => [name.replace(/\?$/, ""), inner, name.endsWith("?")]);
  const kept = present.filter(([key, , isOptional]) => !isOptional || (value[key] ?? null) !== null);
  return Object.fromEntries(kept.map(([key, inner]) => [key, alike(value[key], inner, `${path}.${key}`)]));
}
