/** Nested parameters as one list of names and values. Pure. */

export interface Pair {
  name: string;
  value: string;
}

const DEEPEST = 6;

/** Without what is not set: null, and empty lists and objects, where `all` is not asked for. */
export function flat(value: unknown, all = false, name = "", depth = 0): Pair[] {
  if (!all && isUnset(value)) return [];
  if (Array.isArray(value) && value.every((one) => typeof one !== "object" || one === null)) return [{ name, value: value.map(text).join("  ") }];
  if (typeof value !== "object" || value === null || depth >= DEEPEST) return [{ name, value: text(value) }];
  return Object.entries(value).flatMap(([key, one]) => flat(one, all, name ? `${name}.${key}` : key, depth + 1));
}

function isUnset(value: unknown): boolean {
  if (value === null || value === undefined) return true;
  return typeof value === "object" && Object.keys(value).length === 0;
}

function text(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** The words of an argument list as they are, else an object's names and values. */
export function parameterPairs(parameters: Record<string, unknown> | readonly string[]): Pair[] {
  if (Array.isArray(parameters)) return parameters.map((word, at) => ({ name: String(at + 1), value: String(word) }));
  return flat(parameters, true);
}
