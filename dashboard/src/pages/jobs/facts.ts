/** What a line says of a job: how far it is, how fast, when it is done, and whether that is in time. Pure. */

import { isOver, type JobFacts } from "../../api/jobs";
import { count, duration } from "../../format";

/** From 0 to 1; null where its end is not known. */
export function share(step: number, total: number | null): number | null {
  return total ? Math.min(1, Math.max(0, step / total)) : null;
}

export function steps(step: number, total: number | null): string {
  return total === null ? count(step) : `${count(step)} / ${count(total)}`;
}

export function speed(stepMs: number | null): string {
  if (!stepMs || stepMs <= 0) return "–";
  if (stepMs >= 60_000) return `${duration(stepMs)}/step`;
  if (stepMs >= 1000) return `${(stepMs / 1000).toFixed(stepMs < 10_000 ? 1 : 0)} s/step`;
  const rate = 1000 / stepMs;
  return `${rate >= 10 ? Math.round(rate) : rate.toFixed(1)} steps/s`;
}

/** What is left until it is done: "2 h 31 min". */
export function remaining(job: JobFacts, now: number): string {
  if (isOver(job) || !job.estimated_finish_at) return "–";
  const left = Date.parse(job.estimated_finish_at) - now;
  return left < 1000 ? "any moment" : duration(left);
}

export interface InTime {
  kind: "none" | "good" | "ahead" | "risk" | "late";
  text: string;
}

/** The soft deadline: what is left of it; red where it has passed, or will before the job is done. */
export function inTime(job: JobFacts, now: number): InTime {
  const deadline = Date.parse(job.soft_deadline);
  if (isOver(job)) {
    if (job.status !== "succeeded" || !job.ended_at) return { kind: "none", text: "–" };
    const late = Date.parse(job.ended_at) - deadline;
    return late <= 0 ? { kind: "good", text: "met" } : { kind: "late", text: `late ${duration(late)}` };
  }
  if (deadline < now) return { kind: "late", text: `late ${duration(now - deadline)}` };
  const finish = job.estimated_finish_at ? Date.parse(job.estimated_finish_at) : null;
  if (finish !== null && finish > deadline) return { kind: "risk", text: `${duration(deadline - now)} left` };
  return { kind: "ahead", text: `${duration(deadline - now)} left` };
}

/** What stands where a place would: what it waits for, or why it ended. */
export function instead(job: JobFacts): string {
  if (job.message) return job.message;
  if (job.reason) return job.reason.replaceAll("_", " ");
  return "";
}

/** Micro-dollars saved against all serverless, in words: more was paid where that is negative. */
export function savedKind(saved: number | null): "good" | "bad" | "faint" {
  if (saved === null || saved === 0) return "faint";
  return saved > 0 ? "good" : "bad";
}
