/** Machines, what could be rented, and the companies it is rented from: sdk/allpass/wire/jobs.py and providers.py. */

export const TIERS = ["serverless", "marketplace", "conventional"] as const;

export interface Node {
  id: string;
  provider: string;
  tier: string;
  state: string;
  gpu_type: string;
  gpu_count: number;
  gpu_memory_bytes: number;
  region: string;
  price_per_hour: number;
  job_ids: string[];
  requested_at: string;
  ready_at: string | null;
  ended_at: string | null;
  cost: number;
  message: string | null;
}

export interface Offer {
  provider: string;
  offer_id: string;
  tier: string;
  gpu_type: string;
  gpu_count: number;
  gpu_memory_bytes: number;
  region: string;
  price_per_hour: number;
  price_per_gpu_hour: number;
  startup_ms: number;
  mean_life_ms: number | null;
  seen_at: string;
  price_as_of: string | null;
  price_is_old: boolean;
}

export interface Provider {
  name: string;
  state: string;
  why: string | null;
  last_success_at: string | null;
  paused_until: string | null;
  quota_errors: number;
  machines: number;
  offers: number;
  price_list: { as_of: string } | null;
}
