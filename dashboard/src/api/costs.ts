/** From the ledger: sdk/allpass/wire/usage.py and budgets.py. Micro-dollars. */

export interface UsageLine {
  key: string | null;
  name: string | null;
  payer: string;
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
  scope: string;
  key_id: string | null;
  provider: string | null;
  period: string;
  amount: number;
  spent: number;
  foreseen: number;
  state: string;
  ends_at: string;
}
