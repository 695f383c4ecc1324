/** The shapes of what is settled for a project: sdk/allpass/wire is their source. Money is integer micro-dollars. */

export interface Project {
  id: string;
  name: string;
  created_at: string;
  ahead: boolean;
  archived_at: string | null;
}

export interface Limits {
  machines: number | null;
  per_day: number | null;
  providers: string[];
  machines_rented: number;
  spent_today: number;
  day_ends_at: string;
}

export interface Key {
  id: string;
  name: string;
  prefix: string;
  scopes: string[];
  created_at: string;
  expires_at: string | null;
  last_used_at: string | null;
  revoked_at: string | null;
}

export interface CreatedKey extends Key {
  key: string;
}

export interface Secret {
  name: string;
  created_at: string;
  changed_at: string;
  used_by_jobs: number;
}

export const PERIODS = ["hour", "day", "month"] as const;
export type Period = (typeof PERIODS)[number];

export interface Budget {
  id: string;
  scope: "project" | "installation";
  key_id: string | null;
  provider: string | null;
  period: Period;
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

export interface AuditEntry {
  id: number;
  at: string;
  key_id: string;
  action: string;
  object_id: string | null;
  request_id: string;
  status: number;
}
