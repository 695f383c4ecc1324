import { describe, expect, it, vi } from "vitest";

vi.stubGlobal("matchMedia", () => ({ matches: false, addEventListener: () => undefined }));
const { bestOf, completionLines, courseLines, machineLines, MEASURES, partsOf, sentence } = await import("./figures");
import { bodyOf, commandOf, fieldAbout, fieldsOf, inAddress, policiesOf, USUAL, wrongOf } from "./request";
import type { Course, SimulatedPolicy } from "./shapes";

const trace = { sha256: "ab", name: "mine", jobs: 3, left_out: 0, span_s: 60, gpu_hours: 1 };

describe("the question", () => {
  it("is in the address, without what is as usual", () => {
    const address = inAddress({ ...USUAL, world: "harsh", jobs: " 50 " });
    expect(Object.entries(address).filter(([, value]) => value)).toEqual([["jobs", "50"], ["world", "harsh"]]);
    expect(fieldsOf(new URLSearchParams("world=harsh&jobs=50"))).toEqual({ ...USUAL, world: "harsh", jobs: "50" });
  });
  it("is asked with numbers as numbers", () => {
    expect(bodyOf({ ...USUAL, move: "12.5", limit: "0" }, null)).toEqual({
      generated: { like: "seren", jobs: 200, seed: 0 }, policies: ["allpass", "allpass-drain", "modal-only"], world: "friendly", market: "flat", gpus: "one", move_seconds: 12.5, serverful_limit: 0, seeds: 1,
    });
    expect(bodyOf({ ...USUAL, pools: "8xA100, lab:2x8xH100@0.40," }, null).pools).toEqual(["8xA100", "lab:2x8xH100@0.40"]);
    expect(bodyOf(USUAL, trace)).toMatchObject({ trace: { sha256: "ab", name: "mine" } });
  });
  it("is not asked while something is wrong", () => {
    expect(wrongOf(USUAL, null)).toEqual({});
    expect(Object.keys(wrongOf({ ...USUAL, jobs: "0", draw: "x", seeds: "", limit: "-1", move: "soon", policies: " , " }, null)).sort()).toEqual(["draw", "jobs", "limit", "move", "policies", "seeds"]);
    expect(wrongOf({ ...USUAL, jobs: "x" }, trace)).toEqual({});
    expect(policiesOf({ policies: "a, b,,a" })).toEqual(["a", "b"]);
  });
  it("is answered at its field", () => {
    expect(["move_seconds", "serverful_limit", "knowledge", "trace.sha256", "generated.jobs", "rules.move_gain", null].map(fieldAbout)).toEqual(["move", "limit", "knowledge", "trace", "jobs", null, null]);
  });
});

describe("the command", () => {
  it("plays the same", () => {
    expect(commandOf({ ...USUAL, policies: "allpass", world: "harsh" }, null)).toBe("allpass simulate --policy allpass --world harsh");
    expect(commandOf({ ...USUAL, policies: "allpass", pools: "8xA100, 4xH100" }, null)).toBe("allpass simulate --policy allpass --pool 8xA100 --pool 4xH100");
    expect(commandOf({ ...USUAL, policies: "allpass" }, "mine.csv")).toBe("allpass simulate --trace mine.csv --policy allpass");
  });
  it("writes a workload of another kind first, and lets its jobs move", () => {
    expect(commandOf({ ...USUAL, policies: "allpass", like: "kalos" }, null)).toBe(
      "allpass trace generate --like kalos --jobs 200 --seed 0 -o jobs.csv && allpass simulate --trace jobs.csv --policy allpass --knowledge after:60:0.2 --move-seconds 5",
    );
  });
  it("quotes what a shell would run", () => expect(commandOf({ ...USUAL, policies: "$(rm x)" }, null)).toContain("--policy '$(rm x)'"));
});

const course: Course = { times_s: [0, 3600, 3600], queue: [0, 2, 1], serverless: [1, 1, 0], own: [0, 0, 0], marketplace: [0, 0, 0], conventional: [0, 0, 2], budget_s: [null, 300, 240] };
const policy = (name: string, cost_usd: number, more: Partial<SimulatedPolicy> = {}): SimulatedPolicy => ({
  name, figures: { cost_usd }, cost_by_provider_usd: {}, gpu_hours_by_provider: {}, completion: [[1, 0.5], [1, 0.75], [9, 1]], stayed: 1, moved: 0, rented: 0, course, ...more,
});

describe("the answer", () => {
  it("is said in a sentence", () => {
    expect(sentence([policy("a", 100), policy("b", 290), policy("c", 96), policy("d", 100)])).toBe("a costs $100.00; b 2.9 times that, c 4 % less, d the same.");
  });
  it("marks the best, and never the bound", () => {
    const [cost] = MEASURES;
    expect([...bestOf([policy("a", 3), policy("b", 2), policy("clairvoyant", 1)], cost!)]).toEqual(["b"]);
    expect(bestOf([policy("a", 3), policy("b", 3)], cost!).size).toBe(0);
  });
  it("draws bars on one scale", () => {
    const parts = partsOf([policy("a", 1, { moved: 3 }), policy("b", 1)], (one) => ({ stayed: one.stayed, moved: one.moved }));
    expect(parts.map((list) => list.map((part) => part.share))).toEqual([[25, 75], [25]]);
  });
  it("draws one point for each instant, in hours", () => {
    expect(courseLines([policy("a", 1), policy("bound", 1, { course: null })], (one) => one.queue).map((line) => line.points)).toEqual([[[0, 0], [1, 1]]]);
    expect(courseLines([policy("a", 1)], (one) => one.budget_s)[0]!.points).toEqual([[1, 240]]);
    expect(machineLines(course).map((line) => line.label)).toEqual(["serverless", "conventional"]);
    expect(completionLines([policy("a", 1)])[0]!.points).toEqual([[1, 75], [9, 100]]);
  });
});
