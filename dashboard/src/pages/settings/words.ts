/** What is settled, in words and as commands of the CLI. Pure. */

import { quoted } from "../job/changes";
import type { Budget, Key, Period } from "./shapes";

export type KeyState = "usable" | "expired" | "revoked";

export function keyState(key: Pick<Key, "expires_at" | "revoked_at">, now: number): KeyState {
  if (key.revoked_at) return "revoked";
  return key.expires_at && Date.parse(key.expires_at) <= now ? "expired" : "usable";
}

export const SCOPES = [
  { name: "read", what: "see everything of the project" },
  { name: "submit", what: "submit and steer jobs, set secrets" },
  { name: "admin", what: "manage keys, budgets and the project; includes read and submit" },
  { name: "owner", what: "make projects and settle the limits of the installation; comes with admin" },
] as const;

export const LIFETIMES = [
  { days: null, text: "never" }, { days: 7, text: "in 7 days" }, { days: 30, text: "in 30 days" }, { days: 90, text: "in 90 days" }, { days: 365, text: "in a year" },
] as const;

/** An owner is an admin, too: the service takes the one with the other alone. */
export function withScope(scopes: readonly string[], scope: string, on: boolean): string[] {
  const now = new Set(scopes);
  if (on) now.add(scope);
  else now.delete(scope);
  if (on && scope === "owner") now.add("admin");
  if (!on && scope === "admin") now.delete("owner");
  return SCOPES.map((one) => one.name).filter((name) => now.has(name));
}

export function keyCommand(name: string, scopes: readonly string[], days: number | null): string {
  const given = scopes.map((one) => ` --scope ${one}`).join("");
  return `allpass key create ${quoted(name.trim() || "NAME")}${given}${days === null ? "" : ` --expires ${days}d`}`;
}

const SECRET_NAME = /^[A-Z_][A-Z0-9_]{0,99}$/;

/** What is wrong with the name of a secret; null for a good or an empty one. The service knows more names that are taken. */
export function secretNameProblem(name: string): string | null {
  if (!name || SECRET_NAME.test(name)) return null;
  return "capital letters, digits and _, no digit first, at most 100: HF_TOKEN";
}

export const SHORTEST_SECRET = 6;

/** One newline at its end is what a paste brings along, and no part of the value. */
export function secretValue(text: string): string {
  return text.replace(/\r?\n$/, "");
}

export interface BudgetFields {
  scope: "project" | "installation";
  key_id: string | null;
  provider: string | null;
  period: Period;
}

function identity({ scope, key_id, provider, period }: BudgetFields): string {
  return ` --period ${period}${key_id ? ` --key ${quoted(key_id)}` : ""}${provider ? ` --provider ${quoted(provider)}` : ""}${scope === "installation" ? " --installation" : ""}`;
}

export function setCommand(fields: BudgetFields, amount: string): string {
  return `allpass budget set${identity(fields)} --amount ${quoted(amount || "20")}`;
}

export function removeCommand(fields: BudgetFields): string {
  return `allpass budget remove${identity(fields)}`;
}

/** Dollars of zero or more, or null. A budget of 0 allows nothing. */
export function amountOf(text: string): number | null {
  const clean = text.trim().replace(/^\$/, "").replaceAll(",", "");
  if (!/^\d+(\.\d+)?$/.test(clean)) return null;
  const amount = Number(clean);
  return amount <= 1_000_000 ? amount : null;
}

export const STATES: Record<Budget["state"], { kind: string; text: string }> = {
  open: { kind: "good", text: "open" },
  near: { kind: "wait", text: "nearly used up" },
  used_up: { kind: "bad", text: "used up" },
};

/** "vast", "key ci", "all": what of the spending counts. */
export function whatCounts({ key_id, provider }: Pick<Budget, "key_id" | "provider">, nameOf: (id: string) => string): string {
  const parts = [key_id && `jobs of key ${nameOf(key_id)}`, provider && `at ${provider}`].filter(Boolean);
  return parts.join(", ") || "all that is spent";
}

export interface LimitTexts {
  machines: string;
  perDay: string;
}

export interface LimitChange {
  body: { machines?: number | null; per_day_usd?: number | null };
  wrong: (keyof LimitTexts)[];
  command: string;
}

/** Only what differs is sent; an empty field takes the limit away. */
export function limitChange(before: LimitTexts, now: LimitTexts): LimitChange {
  const change: LimitChange = { body: {}, wrong: [], command: "allpass limits set" };
  const machines = now.machines.trim();
  if (machines !== before.machines) {
    if (machines && !/^\d{1,6}$/.test(machines)) change.wrong.push("machines");
    else change.body.machines = machines ? Number(machines) : null;
    change.command += ` --machines ${quoted(machines || "none")}`;
  }
  const perDay = now.perDay.trim();
  if (perDay !== before.perDay) {
    const amount = amountOf(perDay);
    if (perDay && !amount) change.wrong.push("perDay");
    else change.body.per_day_usd = perDay ? amount : null;
    change.command += ` --per-day ${quoted(perDay.replace(/^\$/, "") || "none")}`;
  }
  return change;
}

const ACTIONS: Record<string, string> = {
  "POST /v1/jobs": "submitted a job", "POST /v1/sweeps": "submitted a sweep", "PATCH /v1/jobs/{job_id}": "changed a job",
  "POST /v1/jobs/{job_id}/cancel": "cancelled a job", "POST /v1/jobs/{job_id}/pause": "paused a job", "POST /v1/jobs/{job_id}/resume": "resumed a job",
  "POST /v1/apps": "created an app", "POST /v1/bundles": "uploaded code", "PATCH /v1/project": "changed the project", "PATCH /v1/limits": "changed the limits",
  "PUT /v1/budgets": "set a budget", "DELETE /v1/budgets/{budget_id}": "removed a budget", "POST /v1/keys": "created a key", "DELETE /v1/keys/{key_id}": "revoked a key",
  "PUT /v1/secrets/{name}": "set a secret", "DELETE /v1/secrets/{name}": "deleted a secret", "POST /v1/projects": "created a project",
  "POST /v1/projects/{project_id}/archive": "archived a project", "POST /v1/projects/{project_id}/restore": "restored a project", "POST /v1/projects/{project_id}/keys": "created a key of another project",
  "PUT /v1/providers/{provider}/prices": "set prices", "DELETE /v1/providers/{provider}/prices": "took prices back", "POST /v1/providers/check": "checked the providers",
  "POST /v1/providers/images": "had an image built", "POST /v1/providers/refresh": "had prices read", "PATCH /v1/calibrations/{calibration_id}": "changed a calibration",
  "DELETE /v1/calibrations/{calibration_id}": "removed a calibration",
};

export function actionInWords(action: string): string {
  return ACTIONS[action] ?? action;
}

/** How a write was answered: done, refused, or failed. */
export function answered(status: number): { kind: "good" | "wait" | "bad"; text: string } {
  if (status < 400) return { kind: "good", text: "done" };
  return status < 500 ? { kind: "wait", text: "refused" } : { kind: "bad", text: "failed" };
}
