/** Machines, offers and rental companies as the service tells of them: sdk/allpass/wire is their source. Micro-dollars. */

import type { TierName } from "../../api/jobs";

export interface Node {
  id: string;
  provider: string;
  tier: TierName;
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
  download_mbps: number | null;
  gpus_checked: "right" | "failed" | "unchecked" | null;
}

export interface Offer {
  provider: string;
  offer_id: string;
  tier: TierName;
  gpu_type: string;
  gpu_count: number;
  gpu_memory_bytes: number; // per GPU
  cpus: number;
  memory_bytes: number;
  region: string;
  price_per_hour: number;
  price_per_gpu_hour: number;
  startup_ms: number;
  traffic_per_gb: number | null;
  mean_life_ms: number | null;
  cpu_architecture: string;
  seen_at: string;
  price_as_of: string | null; // a day
  price_is_old: boolean;
}

export interface ListPrice {
  name: string;
  published: number | null;
  setting: number | null;
  own: number | null;
  set_at: string | null;
  set_by: string | null;
  used: number | null;
  source: "owner" | "setting" | "list" | null;
  as_of: string | null;
  is_old: boolean;
}

export interface PriceList {
  as_of: string;
  oldest: string | null;
  is_old: boolean;
  prices: ListPrice[];
}

export interface ProviderPrices {
  tier: TierName;
  gpu_type: string;
  offers: number;
  lowest: number;
  highest: number;
}

export interface ImageBuild {
  provider: string;
  image: string;
  state: "wanted" | "building" | "ready" | "failed";
  since: string;
  ready_at: string | null;
  why: string | null;
  log: string | null;
  again_at: string | null;
}

export interface Provider {
  name: string;
  state: "ok" | "failing" | "paused" | "refused" | "unknown";
  why: string | null;
  last_success_at: string | null;
  last_failure: { call: string; code: string; message: string; at: string } | null;
  quota_errors: number;
  refused_at: string | null;
  paused_until: string | null;
  machines: number;
  offers: number;
  prices: ProviderPrices[];
  images: ImageBuild[];
  barred_hosts: { host: string; failures: number; until: string }[];
  price_list: PriceList | null;
}

/** Of requests of one shape on hosts of own pools: how many fit now, and free GPUs that none could have, by what they lack. */
export interface Fit {
  gpus: number;
  fitting: number;
  blocked_by_gpus: number;
  blocked_by_cpus: number;
}

export interface Fragmentation {
  pool: string | null;
  hosts: number;
  whole_hosts: number;
  gpus: number;
  free_gpus: number;
  switches: number;
  requests: (Fit & { cpus: number })[];
  gangs: (Fit & { host_gpus: number; host_cpus: number; blocked_by_switch: number })[];
}

/** What a check of the credentials, and asking for prices, say of one provider. `code` is null where all is well. */
export interface Answered {
  name: string;
  code: string | null;
  message: string;
  offers: number | null;
}
