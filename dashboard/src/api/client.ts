/** Requests to the public REST API of the service that served this page. Addresses are relative: see vite.config.ts. */

import type { ErrorDetail, Page } from "./types";

/** An answer that is an error, in the service's own words; `code` "unreachable" where there was no answer. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly detail: ErrorDetail,
  ) {
    super(detail.message);
  }
}

export interface Options {
  body?: unknown; // sent as JSON
  file?: Blob; // sent as it is, in place of a body
  query?: Record<string, string | number | boolean | readonly string[] | null | undefined>;
  signal?: AbortSignal;
  idempotencyKey?: string;
}

let csrfToken: string | null = null;
let whenSignedOut: () => void = () => undefined;

export function useCsrfToken(token: string | null): void {
  csrfToken = token;
}

/** What to do when the service no longer knows the session. */
export function onSignedOut(act: () => void): void {
  whenSignedOut = act;
}

export const get = <T>(path: string, options: Options = {}) => send<T>("GET", path, options);
export const patch = <T>(path: string, body: unknown) => send<T>("PATCH", path, { body });
export const put = <T>(path: string, body: unknown) => send<T>("PUT", path, { body });
export const del = <T>(path: string) => send<T>("DELETE", path, {});
export const upload = <T>(path: string, file: Blob, options: Options = {}) => send<T>("PUT", path, { ...options, file });
/** A POST that may be sent again after a lost connection: it carries an idempotency key. */
export const post = <T>(path: string, body?: unknown, options: Options = {}) =>
  send<T>("POST", path, { idempotencyKey: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`, ...options, body });

/** All items of a list, page by page, up to `most`. */
export async function all<T>(path: string, options: Options = {}, most = 2_000): Promise<T[]> {
  const found: T[] = [];
  let cursor: string | null = null;
  do {
    const page: Page<T> = await get<Page<T>>(path, { ...options, query: { ...options.query, cursor } });
    found.push(...page.data);
    cursor = page.next_cursor;
  } while (cursor !== null && found.length < most);
  return found;
}

export function address(path: string, query: Options["query"] = {}): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value === null || value === undefined || value === "") continue;
    for (const one of Array.isArray(value) ? value : [value]) search.append(name, String(one));
  }
  const text = search.toString();
  return path.replace(/^\//, "") + (text ? `?${text}` : "");
}

async function send<T>(method: string, path: string, options: Options): Promise<T> {
  const headers: Record<string, string> = { accept: "application/json" };
  if (options.file) headers["content-type"] = "application/octet-stream";
  else if (options.body !== undefined) headers["content-type"] = "application/json";
  if (options.idempotencyKey) headers["idempotency-key"] = options.idempotencyKey;
  if (method !== "GET" && csrfToken) headers["x-csrf-token"] = csrfToken;
  let answer: Response;
  try {
    answer = await fetch(address(path, options.query), {
      method,
      headers,
      body: options.file ?? (options.body === undefined ? undefined : JSON.stringify(options.body)),
      signal: options.signal,
      credentials: "same-origin",
    });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError(0, { code: "unreachable", message: "The service cannot be reached.", param: null, request_id: "", retryable: true });
  }
  if (answer.ok) return answer.status === 204 ? (undefined as T) : ((await answer.json()) as T);
  const error = new ApiError(answer.status, await detailOf(answer));
  if (answer.status === 401 && path !== "v1/session") whenSignedOut();
  throw error;
}

async function detailOf(answer: Response): Promise<ErrorDetail> {
  try {
    return ((await answer.json()) as { error: ErrorDetail }).error;
  } catch {
    return { code: "unexpected", message: `The service answered ${answer.status} without a word.`, param: null, request_id: "", retryable: answer.status >= 500 };
  }
}
