/** What a simulation tells: sdk/allpass/wire/simulations.py is the source. Dollars and seconds. */

import type { TierName } from "../../api/jobs";

export interface TraceReport {
  sha256: string;
  name: string;
  jobs: number;
  left_out: number;
  span_s: number;
  gpu_hours: number;
}

export type Course = Record<TierName, number[]> & {
  times_s: number[];
  queue: number[];
  budget_s: (number | null)[];
};

export interface SimulatedPolicy {
  name: string;
  figures: Record<string, number>;
  cost_by_provider_usd: Record<string, number>;
  gpu_hours_by_provider: Record<string, number>;
  completion: [seconds: number, share: number][];
  stayed: number;
  moved: number;
  rented: number;
  course: Course | null;
}

export interface Simulation {
  trace: string;
  jobs: number;
  span_s: number;
  gpu_hours: number;
  seeds: number;
  options: Record<string, string>;
  policies: SimulatedPolicy[];
}
