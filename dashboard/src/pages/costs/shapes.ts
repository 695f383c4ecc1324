/** What was spent and what may be, as the service tells it: sdk/allpass/wire is their source. Money is micro-dollars. */

export const PAYERS = ["run", "boot", "idle", "orphan"] as const;
export type Payer = (typeof PAYERS)[number];

export interface UsageLine {
  key: string | null;
  name: string | null;
  payer: Payer;
  cost: number;
  gpu_ms: number;
}

export interface Usage {
  group_by: string;
  lines: UsageLine[];
  rest: { lines: number; cost: number; gpu_ms: number };
  cost: number;
  gpu_ms: number;
  idle_cost: number;
  so_far: boolean;
  open_nodes: number;
}

export interface Budget {
  id: string;
  scope: "project" | "installation";
  key_id: string | null;
  provider: string | null;
  period: "hour" | "day" | "month";
  amount: number;
  spent: number;
  left: number;
  foreseen: number;
  state: "open" | "near" | "used_up";
  begins_at: string;
  ends_at: string;
  set_by: string;
  set_at: string;
}
