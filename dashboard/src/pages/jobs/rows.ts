/** The jobs that are read so far, newest first, and how news are merged into them. Pure: each change gives new rows. */

import type { JobLine } from "../../api/jobs";

export interface Rows {
  list: readonly JobLine[];
  index: ReadonlyMap<string, number>;
  /** Those that no longer fit the filters, and since when: they stay for a moment, so that nothing jumps under the pointer. */
  left: ReadonlyMap<string, number>;
}

export const NONE: Rows = { list: [], index: new Map(), left: new Map() };

export function rowsOf(list: readonly JobLine[], left: ReadonlyMap<string, number> = NONE.left): Rows {
  return { list, index: new Map(list.map((job, at) => [job.id, at])), left };
}

/** A page that was read: jobs that are known are as they are now, the others find their place. */
export function withPage(rows: Rows, page: readonly JobLine[]): Rows {
  const known = new Map(page.filter((job) => rows.index.has(job.id)).map((job) => [job.id, job]));
  const fresh = page.filter((job) => !rows.index.has(job.id));
  const before = known.size ? rows.list.map((job) => known.get(job.id) ?? job) : rows.list;
  const left = new Map([...rows.left].filter(([id]) => !known.has(id)));
  return rowsOf(fresh.length ? merged(before, fresh) : before, left);
}

export interface Merging {
  fits: (job: JobLine) => boolean | null;
  complete: boolean; // all jobs that fit are read: an older one that begins to fit has its place, too
  now: number;
}

/** News of the stream. Jobs that are not read yet are passed over, but for new ones that fit. */
export function withChanges(rows: Rows, changes: readonly JobLine[], { fits, complete, now }: Merging): Rows {
  const known = changes.filter((job) => rows.index.has(job.id));
  const oldest = rows.list.at(-1);
  const fresh = changes.filter(
    (job) => !rows.index.has(job.id) && fits(job) && (complete || (oldest !== undefined && newestFirst(job, oldest) < 0)),
  );
  if (!known.length && !fresh.length) return rows;
  const left = new Map(rows.left);
  const list = [...rows.list];
  for (const job of known) {
    list[rows.index.get(job.id)!] = job;
    if (fits(job) !== false) left.delete(job.id);
    else if (!left.has(job.id)) left.set(job.id, now);
  }
  return fresh.length ? rowsOf(merged(list, fresh), left) : { list, index: rows.index, left };
}

/** Without those that stopped to fit before that moment. */
export function without(rows: Rows, leftBefore: number): Rows {
  const gone = new Set([...rows.left].filter(([, since]) => since < leftBefore).map(([id]) => id));
  if (!gone.size) return rows;
  const left = new Map([...rows.left].filter(([id]) => !gone.has(id)));
  return rowsOf(rows.list.filter((job) => !gone.has(job.id)), left);
}

export function newestFirst(a: JobLine, b: JobLine): number {
  if (a.submitted_at !== b.submitted_at) return a.submitted_at < b.submitted_at ? 1 : -1;
  return a.id < b.id ? 1 : a.id > b.id ? -1 : 0;
}

function merged(list: readonly JobLine[], fresh: readonly JobLine[]): JobLine[] {
  const more = [...fresh].sort(newestFirst);
  const last = list.at(-1);
  if (!last || newestFirst(last, more[0]!) < 0) return [...list, ...more]; // the next page, as a rule
  const found: JobLine[] = [];
  let at = 0;
  for (const job of list) {
    while (at < more.length && newestFirst(more[at]!, job) < 0) found.push(more[at++]!);
    found.push(job);
  }
  return found.concat(more.slice(at));
}
