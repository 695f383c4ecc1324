/** What a job would need and cost: sdk/allpass/wire/plan.py is the source. Bytes, milliseconds and micro-dollars. */

import type { TierName } from "../../api/jobs";

export interface MemoryRange {
  low: number;
  expected: number;
  high: number;
}

export interface PlanLayout {
  gpus: number;
  replicas: number;
  tensor_parallel: number;
  sharding: string;
  micro_batch: number;
  accumulation: number;
  checkpointing: boolean;
  precision: string | null;
}

export interface PlanOffer {
  tier: TierName;
  provider: string;
  offer_id: string;
  price_per_hour: number;
  startup_ms: number;
  duration_ms: number | null;
  cost: number | null;
  in_time: boolean | null;
  steps_in_time: number | null;
  price_as_of: string | null;
  price_is_old: boolean;
}

export interface PlanOption {
  gpu_type: string;
  gpu_count: number;
  gpu_memory_bytes: number;
  verdict: "fits" | "tight" | "no";
  layout: PlanLayout;
  peak_in: string;
  calibrated_by: number;
  exact: boolean;
  near: boolean;
  process: MemoryRange;
  step_ms: number | null;
  step_source: "measured" | "scaled" | "estimate" | null;
  offers: PlanOffer[];
}

export interface PlanMachines {
  nodes: number;
  gpu_type: string;
  gpu_count: number; // of each machine
  gpu_memory_bytes: number;
  provider: string;
  tier: TierName;
  site: string;
  verdict: PlanOption["verdict"];
  layout: PlanLayout;
  runs_as: "recipe" | "script";
  peak_in: string;
  process: MemoryRange;
  step_ms: number | null;
  step_source: PlanOption["step_source"];
  network: { bits_per_s: number; source: "measured" | "stated" | "assumed"; exchange_ms: number; is_slow: boolean };
  why_not: string | null;
  price_per_hour: number | null;
  duration_ms: number | null;
  cost: number | null;
  in_time: boolean | null;
  switches: { rack: string; switch: string; machines: number }[];
  entropy: number;
}

export interface PlanRemedy {
  changes: string[];
  message: string;
  gpu_type: string;
  gpu_count: number;
  price_per_hour: number;
}

export interface Plan {
  model: string;
  parameters: number;
  batch: number;
  sequence: number;
  method: string;
  profile: string;
  steps: number;
  one_gpu_bytes: number;
  host_bytes: number | null;
  chosen: number | null;
  reason: string;
  options: PlanOption[];
  remedies: PlanRemedy[];
  nodes: number | null; // as it was asked; then `options` is empty
  machines: PlanMachines[];
  chosen_machines: number | null;
  machines_reason: string | null; // null where one machine is enough and no more were asked for
}
