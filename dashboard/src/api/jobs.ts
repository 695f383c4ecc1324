/** The shapes of jobs and of what they leave behind: sdk/allpass/wire is their source. Money is integer micro-dollars. */

export const RENTED_TIERS = ["serverless", "marketplace", "conventional"] as const;
/** A team's own machines come first: they are paid for in any case. */
export const TIERS = ["own", ...RENTED_TIERS] as const;
export type TierName = (typeof TIERS)[number];

/** The columns of a table: own machines have one where there are any. */
export function tierColumns(hasOwn: boolean): readonly TierName[] {
  return hasOwn ? TIERS : RENTED_TIERS;
}

export const STATUSES = ["running", "starting", "checkpointing", "waiting", "queued", "paused", "succeeded", "failed", "cancelled"] as const;
export type JobStatus = (typeof STATUSES)[number];
export type Counts = Partial<Record<string, number>>;

const ENDED = new Set<string>(["succeeded", "failed", "cancelled"]);

export function isOver(job: { status: string }): boolean {
  return ENDED.has(job.status);
}

export interface Where {
  node_id: string;
  provider: string;
  tier: TierName;
  gpu_type: string;
  gpu_count: number;
  price_per_hour: number;
}

/** What a line of a job and the job itself both have. */
export interface JobFacts {
  id: string;
  name: string;
  app_id: string;
  app_name: string;
  sweep_id: string | null;
  status: JobStatus;
  reason: string | null;
  message: string | null;
  where: Where | null;
  step: number;
  total_steps: number | null;
  moves: number;
  faults: number;
  cost: number;
  soft_deadline: string;
  submitted_at: string;
  started_at: string | null;
  ended_at: string | null;
  estimated_finish_at: string | null;
  labels: Record<string, string>;
}

export interface JobLine extends JobFacts {
  priority_class?: string; // absent from services of an earlier release
  saved: number | null;
  step_ms: number | null;
  losses: number[];
}

export interface JobLines {
  data: JobLine[];
  next_cursor: string | null;
  total: number;
  counts: Counts;
}

export interface JobChanges {
  data: JobLine[];
  counts: Counts;
}

export interface Expected {
  likely: number;
  least: number;
  most: number;
  by: "steps" | "target" | "loss";
  earliest_at: string;
  latest_at: string;
}

export interface Job extends JobFacts {
  app_version: number;
  epoch: number;
  checkpoint_step: number | null;
  from_checkpoint_id: string | null;
  unsaved: string | null;
  not_movable: string | null;
  links: Record<string, string>;
  idle_cost: number | null;
  max_cost: number | null;
  max_duration_s: number | null;
  max_hourly: number | null;
  max_wait_s: number | null;
  retries: number | null;
  retried: number;
  expected: Expected | null;
  warnings: string[];
  merge: { partner_id: string; mode: string; state: string; reason: string } | null;
  transfer: { kind: "read" | "send" | "fetch"; done_bytes: number; total_bytes: number; left_ms: number | null } | null;
  results: { files: number; size_bytes: number; left_files: number; left_bytes: number } | null;
  parameters: Record<string, unknown> | string[];
  template: Record<string, unknown>;
}

export interface Stay extends Where {
  run_id: string;
  resumed_from_step: number | null;
  from_at: string;
  running_at: string | null;
  to_at: string | null;
  end_reason: string | null;
  cost: number;
}

/** From when to when a run of a job held so many GPUs. `gpus_before` null: it began with these. */
export interface JobSize {
  run_id: string;
  node_id: string;
  gpu_type: string;
  gpus: number;
  gpus_before: number | null;
  price_per_hour: number;
  from_at: string;
  to_at: string | null;
  why: "begun" | "asked" | "lent" | "returned" | "no_faster" | "refused" | "unknown";
  text: string;
  for_job_id: string | null;
  step_s?: number | null; // measured of jobs of its app, with so many of such GPUs
  noise?: number | null;
}

export interface Timeline {
  stays: Stay[];
  waiting_ms: number;
  running_ms: number;
  cost: number;
  all_serverless: number;
  repeated_ms: number;
}

export interface JobEvent {
  position: number;
  at: string;
  kind: string;
  message: string;
  data: Record<string, unknown>;
}

export interface Sentence {
  text: string;
}

export interface Explanation {
  status: JobStatus;
  headline: string;
  because: Sentence[];
  next: Sentence[];
  deadline: { at: string; given: boolean; slack_ms: number | null; text: string };
}

export interface MetricPoint {
  step: number;
  at: string;
  values: Record<string, number>;
}

export interface LogPage {
  text: string;
  next_position: string;
  complete: boolean;
}

export interface LogMatch {
  line: number;
  position: string;
  text: string;
}

export interface Checkpoint {
  id: string;
  step: number;
  epoch: number;
  size_bytes: number;
  stored_bytes: number | null;
  metrics: Record<string, number>;
  created_at: string;
}

export interface FileLink {
  path: string;
  sha256: string | null;
  size_bytes: number;
  url: string | null;
  pieces: unknown[];
}

export interface Preview {
  path: string;
  size_bytes: number;
  text: string | null;
  truncated: boolean;
  kind: "text" | "image" | "binary";
}
