/** What a job has been through, as stretches of time and moments: from its stays and its events. Pure. */

import { isOver, type Job, type JobEvent, type Stay } from "../../api/jobs";

export type StretchKind = "wait" | "paused" | "boot" | "run";

export interface Stretch {
  kind: StretchKind;
  stay: Stay | null; // of boot and run
  from: number;
  to: number;
  open: boolean; // goes on
  why: string; // of wait and paused
}

export interface Mark {
  kind: "checkpoint" | "move" | "restart" | "fault";
  at: number;
  text: string;
}

export interface Story {
  from: number;
  to: number; // the end, or now
  stretches: Stretch[]; // by their beginning
  marks: Mark[];
}

const SLACK_MS = 2_000; // a stretch's event may be written a moment before it begins
const SHORTEST_WAIT_MS = 1_000;
const WAITING = new Set(["queued", "waiting", "paused", "retry", "memory_retry", "run_stopping", "node_lost", "pause_asked"]);

export function storyOf(job: Job, stays: readonly Stay[], events: readonly JobEvent[], now: number): Story {
  const from = Date.parse(job.submitted_at);
  const to = Math.max(from + 1, job.ended_at ? Date.parse(job.ended_at) : now);
  const held = stays.flatMap((stay) => ofStay(stay, to));
  const waits = gaps(held, from, to).map(([start, end]) => waiting(job, events, start, end, end >= to && !isOver(job)));
  return { from, to, stretches: [...held, ...waits].sort((a, b) => a.from - b.from), marks: marksOf(events) };
}

function ofStay(stay: Stay, end: number): Stretch[] {
  const from = Date.parse(stay.from_at);
  const to = stay.to_at ? Date.parse(stay.to_at) : end;
  const running = stay.running_at ? Date.parse(stay.running_at) : null;
  const boot: Stretch = { kind: "boot", stay, from, to: running ?? to, open: running === null && !stay.to_at, why: "" };
  if (running === null) return [boot];
  const run: Stretch = { kind: "run", stay, from: running, to: Math.max(running, to), open: !stay.to_at, why: "" };
  return running > from ? [boot, run] : [run];
}

/** When it was on no machine at all. */
function gaps(held: readonly Stretch[], from: number, to: number): [number, number][] {
  const found: [number, number][] = [];
  let at = from;
  for (const stretch of [...held].sort((a, b) => a.from - b.from)) {
    if (stretch.from - at >= SHORTEST_WAIT_MS) found.push([at, stretch.from]);
    at = Math.max(at, stretch.to);
  }
  if (to - at >= SHORTEST_WAIT_MS) found.push([at, to]);
  return found;
}

function waiting(job: Job, events: readonly JobEvent[], from: number, to: number, open: boolean): Stretch {
  const told = events.filter((event) => {
    const at = Date.parse(event.at);
    return at >= from - SLACK_MS && (open || at < to) && WAITING.has(event.kind);
  });
  const last = told.at(-1);
  const why = (open && job.message) || (last && last.kind !== "queued" ? last.message : "waits for a place");
  const paused = open ? job.status === "paused" : last?.kind === "paused";
  return { kind: paused ? "paused" : "wait", stay: null, from, to, open, why };
}

const FAULT = /lost|at_fault|damaged|refused|disk_is_short|unreachable|^failed$|missing|create_failed|decision_failed/;
const RESTART = /^(retry|memory_retry|began_again|resumed)$/;

export function markKind(kind: string): Mark["kind"] | null {
  if (kind === "checkpoint_committed" || kind === "checkpoint_saved") return "checkpoint";
  if (RESTART.test(kind)) return "restart";
  if (FAULT.test(kind)) return "fault";
  return /^move_(begun|planned)$/.test(kind) ? "move" : null;
}

function marksOf(events: readonly JobEvent[]): Mark[] {
  return events.flatMap((event) => {
    const kind = markKind(event.kind);
    return kind ? [{ kind, at: Date.parse(event.at), text: event.message }] : [];
  });
}

/** How long no code of it ran between one machine and the next: what a move took of the job. */
export function pauseBefore(stays: readonly Stay[], index: number): number | null {
  const before = stays[index - 1];
  const running = stays[index]?.running_at;
  if (!before?.to_at || !running) return null;
  return Math.max(0, Date.parse(running) - Date.parse(before.to_at));
}

const ENDS: Record<string, string> = {
  finished: "finished", failed: "its code failed", demoted: "moved on", migrated: "moved on", preempted: "made room for another job",
  merged: "merged with another job", split: "parted from another job", node_lost: "machine lost", cancelled: "cancelled",
  capped: "a limit was reached", paused: "paused", unsaved: "left without its last steps",
};

export function endInWords(stay: Stay): string {
  if (!stay.to_at) return stay.running_at ? "runs" : "starts";
  return stay.end_reason ? ENDS[stay.end_reason] ?? stay.end_reason.replaceAll("_", " ") : "ended";
}

export function wasFault(stay: Stay): boolean {
  return stay.end_reason === "node_lost" || stay.end_reason === "failed" || stay.end_reason === "unsaved";
}
