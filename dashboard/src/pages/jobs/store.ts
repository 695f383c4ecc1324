/** Reads the jobs that fit, page by page as one scrolls, and keeps them as they are: by the stream, else by asking. */

import { signal } from "@preact/signals";

import { get } from "../../api/client";
import type { Counts, JobChanges, JobLines } from "../../api/jobs";
import { listen, type Standing } from "../../parts/live";
import { asked as question, fits, isNarrowed, keyOf, type Filters } from "./filters";
import { NONE, withChanges, withPage, without, type Rows } from "./rows";

export interface JobsState {
  key: string; // of the filters that it is for
  rows: Rows;
  counts: Counts;
  total: number;
  cursor: string | null;
  read: boolean; // the first page is there
  busy: boolean;
  error: Error | null;
}

const EMPTY: JobsState = { key: "", rows: NONE, counts: {}, total: 0, cursor: null, read: false, busy: false, error: null };
const PAGE = 200;
const POLL_MS = 5_000; // while there is no stream
const RECOUNT_MS = 10_000; // the stream counts the whole project: narrowed counts are asked for
const LINGER_MS = 8_000; // how long a job that no longer fits stays
const MOST_PAGES_ANEW = 10;

/** Kept while one looks at a job, so that going back finds everything where it was. */
export const jobs = signal<JobsState>(EMPTY);
export const standing = signal<Standing>("live");
/** True while the pointer is over the rows: none is taken away under it. */
export const held = signal(false);

let filters: Filters;
let abort = new AbortController();
let recounted = 0;

/** Watches the jobs that fit until the function that it returns is called. */
export function watch(wanted: Filters): () => void {
  const key = keyOf(wanted);
  filters = wanted;
  abort = new AbortController();
  jobs.value = jobs.value.key === key ? { ...jobs.value, busy: false, error: null } : { ...EMPTY, key, counts: jobs.value.counts };
  void refresh();
  const stop = listen("v1/jobs/table/stream", {
    event: "jobs",
    onData: (data) => data && take(data as JobChanges),
    onStanding: (now) => (standing.value = now),
    onBack: () => void refresh(),
  });
  const poll = setInterval(() => {
    if (standing.value === "lost" && !document.hidden) void refresh();
    if (!held.value) set({ rows: without(jobs.value.rows, Date.now() - LINGER_MS) });
  }, POLL_MS);
  return () => {
    stop();
    clearInterval(poll);
    abort.abort();
  };
}

/** The next page, if there is one and none is on its way. After a failure only where one asks for it. */
export async function more(asked = false): Promise<void> {
  const { cursor, busy, error } = jobs.value;
  if (busy || (error && !asked) || cursor === null) return;
  await reading(async (signal) => {
    const page = await pageAt(cursor, signal);
    set({ rows: withPage(jobs.value.rows, page.data), cursor: page.next_cursor, total: page.total, counts: page.counts });
  });
}

/** Reads again what is read, from the start, within bounds. */
export async function refresh(): Promise<void> {
  if (jobs.value.busy) return;
  await reading(async (signal) => {
    let page = await pageAt(null, signal);
    const first = !jobs.value.read;
    set({ rows: withPage(jobs.value.rows, page.data), total: page.total, counts: page.counts, read: true });
    if (first) set({ cursor: page.next_cursor });
    const wanted = Math.min(MOST_PAGES_ANEW, Math.ceil(jobs.value.rows.list.length / PAGE));
    for (let at = 1; at < wanted && page.next_cursor !== null; at += 1) {
      page = await pageAt(page.next_cursor, signal);
      set({ rows: withPage(jobs.value.rows, page.data) });
    }
    recounted = Date.now();
  });
}

function take(changes: JobChanges): void {
  const { rows, cursor, read } = jobs.value;
  if (!read) return;
  const merging = { fits: (job: JobChanges["data"][number]) => fits(job, filters), complete: cursor === null, now: Date.now() };
  set({ rows: withChanges(rows, changes.data, merging) });
  if (!isNarrowed(filters)) {
    const chosen = filters.status.length ? filters.status : Object.keys(changes.counts);
    set({ counts: changes.counts, total: chosen.reduce((sum, status) => sum + (changes.counts[status] ?? 0), 0) });
  } else if (Date.now() - recounted > RECOUNT_MS) void recount();
}

async function recount(): Promise<void> {
  recounted = Date.now();
  const { signal } = abort;
  const page = await pageAt(null, signal, 1).catch(() => null);
  if (page && !signal.aborted) set({ total: page.total, counts: page.counts });
}

function pageAt(cursor: string | null, signal: AbortSignal, limit = PAGE): Promise<JobLines> {
  return get<JobLines>("v1/jobs/table", { query: { ...question(filters), limit, cursor }, signal });
}

async function reading(work: (signal: AbortSignal) => Promise<void>): Promise<void> {
  const { signal } = abort;
  set({ busy: true, error: null });
  try {
    await work(signal);
  } catch (error) {
    if (!signal.aborted) set({ error: error as Error });
  } finally {
    if (!signal.aborted) set({ busy: false });
  }
}

function set(changes: Partial<JobsState>): void {
  jobs.value = { ...jobs.value, ...changes };
}
