/** Reads a log from its beginning to its end, and goes on as it grows, within bounds. */

import { signal } from "@preact/signals";

import { get } from "../../api/client";
import type { LogPage } from "../../api/jobs";
import { NO_LINES, withText, type LogLines } from "./log-lines";

export interface LogState {
  lines: LogLines;
  position: string | null;
  state: "reading" | "follows" | "held" | "complete" | "failed"; // held: much is read, and one is asked before more is
  characters: number;
  error: Error | null;
}

const HOLD_AT = 16_000_000; // characters
const CATCHING_UP = 100_000;
const MOST_LINES = 50_000;
const WAIT_S = 20;
const AGAIN_MS = 5_000;

export function logReader(jobId: string, from: string | null = null) {
  const path = `v1/jobs/${encodeURIComponent(jobId)}/logs`;
  const state = signal<LogState>({ lines: NO_LINES, position: from, state: "reading", characters: 0, error: null });
  const abort = new AbortController();
  let holdAt = HOLD_AT;

  const once = async (): Promise<void> => {
    const before = state.value;
    const query = { position: before.position, wait_s: before.state === "follows" ? WAIT_S : 0 };
    const page = await get<LogPage>(path, { query, signal: abort.signal });
    const lines = withText(before.lines, page.text, { most: MOST_LINES, last: page.complete });
    const characters = before.characters + page.text.length;
    const much = page.text.length > CATCHING_UP; // less than that, and one is near the end
    const next = page.complete ? "complete" : !much ? "follows" : characters > holdAt ? "held" : "reading";
    state.value = { lines, position: page.next_position, state: next, characters, error: null };
  };

  const go = async (): Promise<void> => {
    while (!abort.signal.aborted && (state.value.state === "reading" || state.value.state === "follows")) {
      try {
        await visible();
        await once();
      } catch (error) {
        if (abort.signal.aborted) return;
        state.value = { ...state.value, error: error as Error };
        await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
      }
    }
  };
  void go();

  return {
    state,
    stop: () => abort.abort(),
    /** To the end, however long it is: of the lines, the newest are kept. */
    readOn: () => {
      holdAt = Infinity;
      state.value = { ...state.value, state: "reading" };
      void go();
    },
  };
}

/** While nobody sees the page, it does not hold a connection open: browsers have few for one host. */
function visible(): Promise<void> {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => document.addEventListener("visibilitychange", () => resolve(), { once: true }));
}

/** All of the log as one text, for a file; null where it is longer than `most` characters. */
export async function wholeLog(jobId: string, most = 100_000_000): Promise<string | null> {
  const parts: string[] = [];
  let position: string | null = null;
  for (let size = 0; size <= most; ) {
    const page: LogPage = await get<LogPage>(`v1/jobs/${encodeURIComponent(jobId)}/logs`, { query: { position } });
    parts.push(page.text);
    size += page.text.length;
    position = page.next_position;
    if (page.complete || !page.text) return parts.join("");
  }
  return null;
}
