/** Jobs of one sweep under one heading, where its newest job stands. Pure. */

import { STATUSES, isOver, type Counts, type JobLine } from "../../api/jobs";

export interface SweepLine {
  kind: "sweep";
  id: string;
  name: string;
  app_name: string;
  jobs: number;
  more: boolean; // further jobs of it may not be read yet
  open: boolean;
  counts: Counts;
  over: number;
  step: number;
  total_steps: number | null; // of all; null where one does not know its own
  bestLoss: number | null;
  finish: string | null; // of the job that is expected to end last
  deadline: string; // the next of those that are not over
  cost: number;
  saved: number | null;
}

export interface JobEntry {
  kind: "job";
  id: string;
  job: JobLine;
  inside: boolean; // under its sweep's heading
}

export type Entry = SweepLine | JobEntry;

export interface Folding {
  folded: boolean;
  open: ReadonlySet<string>;
  complete: boolean; // all jobs are read
}

export function entriesOf(list: readonly JobLine[], { folded, open, complete }: Folding): Entry[] {
  if (!folded) return list.map((job) => entry(job, false));
  const sweeps = bySweep(list);
  const last = list.at(-1)?.sweep_id;
  const told = new Set<string>();
  const entries: Entry[] = [];
  for (const job of list) {
    const jobs = job.sweep_id ? sweeps.get(job.sweep_id) : undefined;
    if (!job.sweep_id || !jobs || jobs.length < 2) entries.push(entry(job, false));
    else if (!told.has(job.sweep_id)) {
      told.add(job.sweep_id);
      const isOpen = open.has(job.sweep_id);
      entries.push(heading(job.sweep_id, jobs, isOpen, !complete && last === job.sweep_id));
      if (isOpen) for (const one of jobs) entries.push(entry(one, true));
    }
  }
  return entries;
}

/** The same job has the same entry, so that ten thousand of them are not made anew each second. */
const made = [new WeakMap<JobLine, JobEntry>(), new WeakMap<JobLine, JobEntry>()] as const;

function entry(job: JobLine, inside: boolean): JobEntry {
  const known = made[inside ? 1 : 0];
  const found = known.get(job) ?? { kind: "job", id: job.id, job, inside };
  known.set(job, found);
  return found;
}

function bySweep(list: readonly JobLine[]): Map<string, JobLine[]> {
  const found = new Map<string, JobLine[]>();
  for (const job of list) {
    if (!job.sweep_id) continue;
    const jobs = found.get(job.sweep_id);
    if (jobs) jobs.push(job);
    else found.set(job.sweep_id, [job]);
  }
  return found;
}

function heading(id: string, jobs: readonly JobLine[], open: boolean, more: boolean): SweepLine {
  const counts: Counts = {};
  for (const job of jobs) counts[job.status] = (counts[job.status] ?? 0) + 1;
  const lives = jobs.filter((job) => !isOver(job));
  const losses = jobs.map((job) => job.losses.at(-1)).filter((loss): loss is number => loss !== undefined && Number.isFinite(loss));
  const finishes = lives.map((job) => job.estimated_finish_at).filter((at): at is string => at !== null);
  const saved = jobs.map((job) => job.saved).filter((one): one is number => one !== null);
  return {
    kind: "sweep", id, open, more, counts,
    name: commonName(jobs.map((job) => job.name)),
    app_name: jobs[0]!.app_name,
    jobs: jobs.length,
    over: jobs.length - lives.length,
    step: sum(jobs.map((job) => job.step)),
    total_steps: jobs.every((job) => job.total_steps !== null) ? sum(jobs.map((job) => job.total_steps!)) : null,
    bestLoss: losses.length ? Math.min(...losses) : null,
    finish: finishes.length ? finishes.reduce((a, b) => (a > b ? a : b)) : null,
    deadline: (lives.length ? lives : jobs).map((job) => job.soft_deadline).reduce((a, b) => (a < b ? a : b)),
    cost: sum(jobs.map((job) => job.cost)),
    saved: saved.length ? sum(saved) : null,
  };
}

/** What all the names begin with, as "rank" of "rank-8" and "rank-16"; the first one where that says nothing. */
export function commonName(names: readonly string[]): string {
  let common = names[0] ?? "";
  for (const name of names) while (common && !name.startsWith(common)) common = common.slice(0, -1);
  const whole = names.every((name) => name === common);
  const trimmed = whole ? common : common.replace(/[\s\-_./:#([=]+$/, "");
  return trimmed.length > 1 ? trimmed : names[0] ?? "";
}

/** "3 running, 1 failed", in the order in which one wants to know. */
export function countsInWords(counts: Counts): string {
  return STATUSES.filter((status) => counts[status]).map((status) => `${counts[status]} ${status}`).join(", ");
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((a, b) => a + b, 0);
}
