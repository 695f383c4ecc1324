/** The decisions of a stretch of time up to now: read back once, then what is new every few seconds. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";

import { get } from "../../api/client";
import type { Page } from "../../api/types";
import { leavesGap, merged, within, type Decision, type Pressure } from "./decisions";

const ANEW_MS = 3_000;
const NEW_ONES = 50; // asked for each time
const PAGE = 1_000;
const MOST_PAGES = 4; // a longer stretch shows the newest part of it
const MOST_KEPT = 6_000; // of a page that stays open for days

export interface Decisions {
  list: readonly Decision[] | null; // newest first; null: not read yet
  older: string | null; // the cursor of what is before them
  error: Error | null; // of the newest reading
  again: () => void;
  readOlder: () => Promise<void>;
}

interface State {
  list: readonly Decision[] | null;
  older: string | null;
  error: Error | null;
}

export function useDecisions(spanMs: number): Decisions {
  const [state, set] = useState<State>({ list: null, older: null, error: null });
  const [turn, setTurn] = useState(0);
  const latest = useRef(state);
  latest.current = state;
  useEffect(() => follow(spanMs, () => latest.current, set), [spanMs, turn]);
  const again = useCallback(() => setTurn((before) => before + 1), []);
  const readOlder = useCallback(async () => {
    const { list, older } = latest.current;
    if (!list || older === null) return;
    const page = await get<Page<Decision>>("v1/ticks", { query: { limit: 100, cursor: older } });
    set((before) => ({ ...before, list: merged(before.list ?? [], page.data), older: page.next_cursor }));
  }, []);
  return { ...state, again, readOlder };
}

/** Reads until the function that it returns is called. */
function follow(spanMs: number, known: () => State, set: (change: (before: State) => State) => void): () => void {
  const abort = new AbortController();
  let timer: ReturnType<typeof setTimeout> | undefined;
  let whole = false;
  const once = async () => {
    try {
      const found = whole ? await news(known(), spanMs, abort.signal) : await history(spanMs, abort.signal);
      whole = true;
      if (found && !abort.signal.aborted) set(() => ({ ...found, error: null }));
    } catch (error) {
      if (!abort.signal.aborted) set((before) => ({ ...before, error: error as Error }));
    }
    if (!abort.signal.aborted) timer = setTimeout(() => void once(), ANEW_MS);
  };
  void once();
  return () => {
    abort.abort();
    clearTimeout(timer);
  };
}

async function history(spanMs: number, signal: AbortSignal): Promise<Omit<State, "error">> {
  const from = Date.now() - spanMs;
  let list: Decision[] = [];
  let older: string | null = null;
  for (let page = 0; page < MOST_PAGES; page += 1) {
    const read: Page<Decision> = await get<Page<Decision>>("v1/ticks", { query: { limit: PAGE, cursor: older }, signal });
    list = [...list, ...read.data];
    older = read.next_cursor;
    if (older === null || Date.parse(list.at(-1)!.at) < from) break;
  }
  return { list, older };
}

/** Null where nothing is new. What was lost out of sight, e.g. while the page was hidden, is read back. */
async function news(known: State, spanMs: number, signal: AbortSignal): Promise<Omit<State, "error"> | null> {
  if (document.hidden) return null;
  const read = await get<Pressure>("v1/pressure", { query: { limit: NEW_ONES }, signal });
  const before = known.list ?? [];
  if (leavesGap(before, read.decisions, NEW_ONES) || before.length > MOST_KEPT) return history(spanMs, signal);
  const list = merged(before, read.decisions);
  return list === before && known.error === null ? null : { list, older: known.older };
}

/** Those of the stretch itself, for the charts. */
export function ofSpan(list: readonly Decision[], spanMs: number): readonly Decision[] {
  const newest = list[0];
  const now = Math.max(Date.now(), newest ? Date.parse(newest.at) : 0);
  return within(list, now - spanMs);
}

