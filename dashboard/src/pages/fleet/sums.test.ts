import { describe, expect, it } from "vitest";

import type { Node } from "../../api/fleet";
import { groupsOf, sumOf } from "./sums";

const node = (changes: Partial<Node>): Node => ({
  id: "node_1", provider: "vast", tier: "marketplace", state: "ready", gpu_type: "A100", gpu_count: 1, gpu_memory_bytes: 40e9,
  region: "", price_per_hour: 700_000, job_ids: [], requested_at: "2026-01-01T00:00:00Z", ready_at: null, ended_at: null, cost: 0,
  message: null, ...changes,
});

describe("what machines come to", () => {
  it("counts those that stand idle apart, and not those that boot or are gone", () => {
    const nodes = [node({ job_ids: ["job_1"], gpu_count: 4 }), node({}), node({ state: "booting" }), node({ ended_at: "2026-01-02T00:00:00Z" })];
    expect(sumOf(nodes)).toEqual({ machines: 3, gpus: 6, busy: 4, hourly: 2_100_000, idleHourly: 700_000 });
  });

  it("groups by tier and provider", () => {
    const nodes = [node({ provider: "x" }), node({}), node({}), node({ tier: "conventional", provider: "lambda" })];
    expect(groupsOf(nodes).map((group) => [group.tier, group.provider, group.machines])).toEqual([
      ["conventional", "lambda", 1], ["marketplace", "vast", 2], ["marketplace", "x", 1],
    ]);
  });

  it("is nothing without machines", () => {
    expect(sumOf([])).toEqual({ machines: 0, gpus: 0, busy: 0, hourly: 0, idleHourly: 0 });
    expect(groupsOf([])).toEqual([]);
  });
});
