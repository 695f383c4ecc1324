/** Decisions of the control loop, and how the service is: sdk/allpass/wire/pressure.py, ticks.py and jobs.py. */

export interface Decision {
  id: number;
  at: string;
  policy: string;
  trigger: string;
  pressure: number | null; // p
  serverless_budget_s: number | null; // F
  capacity_gpus: number | null; // C
  demand_gpu_s: number | null; // D
  jobs_waiting: number;
  nodes: Record<string, number>; // by tier
  actions: Record<string, number>; // by kind
  reasons: string[];
  duration_ms: number;
}

export interface PlannedAction {
  kind: string;
  job_id: string | null;
  node_id: string | null;
  offer: string | null;
  price_per_hour: number | null;
  reason: string;
}

export interface Replay {
  policy_then: string;
  policy_now: string;
  same: boolean;
  caveat: string | null;
  both: PlannedAction[];
  only_then: PlannedAction[];
  only_now: PlannedAction[];
}

export interface Health {
  status: string;
  version: string;
  parts: Record<string, string>;
  degraded: { part: string; since: string; failures: number; what: string }[];
}
