/** What a job's money went into, and what it would have been all on serverless. Pure. */

import type { Timeline } from "../../api/jobs";
import { duration, money, percent } from "../../format";

export interface UsageLine {
  key: string | null;
  payer: "run" | "boot" | "idle" | "orphan";
  cost: number;
}

export interface CostPart {
  name: string;
  cost: number;
  kind: "run" | "boot" | "idle";
  what: string;
}

/** Run and boot add up to the job's cost; where the ledger's lines do not tell them apart, they are one. */
export function partsOf(jobId: string, cost: number, idle: number | null, lines: readonly UsageLine[]): CostPart[] {
  const own = (payer: string) => lines.filter((line) => line.key === jobId && line.payer === payer).reduce((sum, line) => sum + line.cost, 0);
  const boot = Math.min(cost, own("boot"));
  const known = own("run") > 0;
  const parts: CostPart[] = known
    ? [
        { name: "Run", cost: cost - boot, kind: "run", what: "GPUs that it held" },
        { name: "Boot", cost: boot, kind: "boot", what: "before machines that were rented for it were ready" },
      ]
    : [{ name: "Run and boot", cost, kind: "run", what: "GPUs that it held, and machines that booted for it" }];
  if (idle) parts.push({ name: "Idle around it", cost: idle, kind: "idle", what: "machines that stood idle around it: on the project's bill, not on the job's" });
  return parts.filter((part) => part.cost > 0 || part.kind === "run");
}

const LEAST_SHARE = 0.01;

export interface Verdict {
  kind: "good" | "bad" | "faint";
  text: string;
}

/** Honest both ways: what moving saved, what it cost, and when there is nothing to compare. */
export function verdictOf(timeline: Timeline, idle: number | null, over: boolean): Verdict {
  const { cost, all_serverless, stays } = timeline;
  const soFar = over ? "" : " so far";
  if (!stays.length || all_serverless === 0) return { kind: "faint", text: "Nothing has run yet, so there is nothing to compare." };
  if (stays.every((stay) => stay.tier === "serverless") && all_serverless === cost) return { kind: "faint", text: `It has been on serverless only${soFar}: that is what it cost.` };
  const saved = all_serverless - cost;
  const share = percent(Math.abs(saved) / all_serverless);
  if (Math.abs(saved) < LEAST_SHARE * all_serverless) return { kind: "faint", text: `All on serverless would have cost about the same${soFar}.` };
  if (saved < 0) return { kind: "bad", text: `It cost ${money(-saved)} (${share}) more than all on serverless would have${soFar}.` };
  const text = `${money(saved)} (${share}) less than all on serverless${soFar}.`;
  if (!idle) return { kind: "good", text };
  const rest = saved - idle;
  return rest > 0
    ? { kind: "good", text: `${text} With the idle machines around it, ${money(rest)} are left of that.` }
    : { kind: "faint", text: `${text} The idle machines around it cost more than that: ${money(idle)}.` };
}

export function notes(timeline: Timeline): string[] {
  const found = ["All on serverless: the same running time, done once, at the price of its own serverless stay, else of the cheapest offer now."];
  if (timeline.repeated_ms > 0) found.push(`${duration(timeline.repeated_ms)} of its running time were done again, after a machine or a move lost them: they are in its cost, and not in the comparison.`);
  return found;
}
