import { describe, expect, it } from "vitest";

import { filtersOf, fits, gpusOf, grouped, heldBy, idlePerHour, NOTHING_HELD, rowOf, statesOf, sumsOf } from "./nodes";
import type { Node } from "./shapes";

const node = (changes: Partial<Node> = {}): Node => ({
  id: "node_1", provider: "vast", tier: "marketplace", state: "ready", gpu_type: "A100", gpu_count: 8, gpu_memory_bytes: 8e10, region: "EU", price_per_hour: 8_000_000,
  job_ids: [], requested_at: "2026-12-01T10:00:00Z", ready_at: null, ended_at: null, cost: 0, message: null, download_mbps: null, gpus_checked: null, ...changes,
});
const where = { node_id: "node_1", provider: "vast", tier: "marketplace", gpu_type: "A100", gpu_count: 3, price_per_hour: 1 } as const;
const all = filtersOf(new URLSearchParams());

describe("the GPUs of a machine", () => {
  it("are busy as far as jobs hold them", () => {
    const held = heldBy([{ id: "job_1", name: "a", where }, { id: "job_2", name: "b", where: null }]);
    expect(gpusOf(node({ job_ids: ["job_1"] }), held)).toEqual({ busy: 3, free: 5, coming: 0, most: false });
    expect(held.names.get("job_2")).toBe("b");
  });
  it("are never more than it has, though merged jobs hold the same ones", () => {
    expect(gpusOf(node({ gpu_count: 4, job_ids: ["a", "b"] }), heldBy([{ id: "a", name: "", where }, { id: "b", name: "", where }])).busy).toBe(4);
  });
  it("are at most all of them where the jobs were not read", () => {
    expect(gpusOf(node({ job_ids: ["a"] }), NOTHING_HELD)).toEqual({ busy: 8, free: 0, coming: 0, most: true });
    expect(gpusOf(node({ job_ids: ["a"], gpu_count: 1 }), NOTHING_HELD).most).toBe(false);
  });
  it("are not free before it is ready, nor when it is to go", () => {
    expect(gpusOf(node({ state: "booting" }), NOTHING_HELD)).toEqual({ busy: 0, free: 0, coming: 8, most: false });
    expect(gpusOf(node({ state: "draining" }), NOTHING_HELD).free).toBe(0);
    expect(gpusOf(node({ state: "failed" }), NOTHING_HELD)).toEqual({ busy: 0, free: 0, coming: 0, most: false });
  });
});

it("counts what nobody holds as idle, but not what still starts", () => {
  const held = heldBy([{ id: "job_1", name: "a", where }]);
  const half = node({ job_ids: ["job_1"] });
  expect(idlePerHour(half, gpusOf(half, held))).toBe(5_000_000);
  const early = node({ state: "booting" });
  expect(idlePerHour(early, gpusOf(early, held))).toBe(0);
});

it("groups by tier and provider, and folds", () => {
  const nodes = [node({ id: "n1", tier: "conventional", provider: "lambda" }), node({ id: "n2" }), node({ id: "n3", requested_at: "2026-12-01T11:00:00Z" }), node({ id: "n4", provider: "a" })];
  const rows = nodes.map((one) => rowOf(one, NOTHING_HELD));
  expect(grouped(rows, all).map((row) => row.key)).toEqual(["marketplace/a", "n4", "marketplace/vast", "n3", "n2", "conventional/lambda", "n1"]);
  expect(grouped(rows, { ...all, folded: new Set(["marketplace/vast"]) }).map((row) => row.key)).toEqual(["marketplace/a", "n4", "marketplace/vast", "conventional/lambda", "n1"]);
  expect(sumsOf(rows)).toMatchObject({ nodes: 4, gpus: 32, free: 32, perHour: 32_000_000, idlePerHour: 32_000_000 });
});

it("finds machines by what one knows of them", () => {
  const held = heldBy([{ id: "job_1", name: "BERT imdb", where }]);
  const row = rowOf(node({ job_ids: ["job_1"] }), held);
  const found = (query: string) => fits(row, filtersOf(new URLSearchParams(query)), held);
  expect(["q=bert", "q=NODE_", "tier=marketplace&provider=vast", "state=ready", "state=ended", "q=eu"].map(found)).toEqual([true, true, true, true, true, true]);
  expect(["q=llama", "tier=serverless", "provider=modal", "state=booting"].map(found)).toEqual([false, false, false, false]);
});

it("does not trust the address", () => expect(filtersOf(new URLSearchParams("sort=evil&fold=a/b,,c")).sort).toBe("newest"));

it("counts states, the most frequent first", () => {
  expect(statesOf([node(), node(), node({ state: "booting" })])).toEqual([["ready", 2], ["booting", 1]]);
});
