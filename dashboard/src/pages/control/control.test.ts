import { describe, expect, it } from "vitest";

import { chose, gpuTime, leavesGap, merged, newestWith, pointsOf, ratio, strain, windowOf, within, type Decision } from "./decisions";
import { cheapestOf } from "./providers";
import { isHealth } from "./readiness";
import { commandOf, differences, droppedOf, rulesOf, type Replay } from "./replays";

const AT = Date.UTC(2026, 10, 21, 12);

function decision(id: number, more: Partial<Decision> = {}): Decision {
  return {
    id, at: new Date(AT + id * 1000).toISOString(), policy: "allpass", trigger: "tick", pressure: 0.5, serverless_budget_s: 300, capacity_gpus: 2, demand_gpu_s: 100,
    jobs_waiting: 0, nodes: {}, actions: {}, reasons: [], duration_ms: 3, ...more,
  };
}

const ids = (list: readonly Decision[]) => list.map((one) => one.id);

describe("merged", () => {
  it("puts what is new above and what is older below, each once", () => {
    const known = [decision(5), decision(4)];
    expect(ids(merged(known, [decision(7), decision(5)]))).toEqual([7, 5, 4]);
    expect(ids(merged(known, [decision(4), decision(3)]))).toEqual([5, 4, 3]);
    expect(ids(merged([], [decision(2), decision(1)]))).toEqual([2, 1]);
  });
  it("is the same list where nothing is new", () => {
    const known = [decision(5), decision(4)];
    expect(merged(known, [decision(5)])).toBe(known);
  });
  it("knows when decisions were missed", () => {
    expect(leavesGap([decision(1)], [decision(9), decision(8)], 2)).toBe(true);
    expect(leavesGap([decision(8)], [decision(9), decision(8)], 2)).toBe(false);
    expect(leavesGap([decision(1)], [decision(9)], 2)).toBe(false);
    expect(leavesGap([], [decision(9), decision(8)], 2)).toBe(false);
  });
});

describe("what is drawn", () => {
  it("is the stretch that was chosen, by rising time, without what was not measured", () => {
    const list = [decision(3), decision(2, { pressure: null }), decision(1)];
    expect(ids(within(list, AT + 2000))).toEqual([3, 2]);
    expect(pointsOf(list, (one) => one.pressure)).toEqual([[AT / 1000 + 1, 0.5], [AT / 1000 + 3, 0.5]]);
    expect(newestWith([decision(9, { pressure: null }), decision(8, { pressure: 2 })], (one) => one.pressure)).toBe(2);
    expect(newestWith([], (one) => one.pressure)).toBeNull();
  });
  it("takes any text of an address", () => {
    expect([windowOf("6h"), windowOf(null), windowOf("constructor")]).toEqual(["6h", "1h", "1h"]);
  });
});

describe("in words", () => {
  it("says what was chosen", () => {
    expect([chose({ start: 2, release: 1 }), chose({})]).toEqual(["2 start, 1 release", "nothing"]);
  });
  it("has units for GPU time", () => {
    expect([gpuTime(42), gpuTime(1200), gpuTime(12_600), gpuTime(null)]).toEqual(["42 GPU s", "20 GPU min", "3.5 GPU h", "–"]);
  });
  it("says what a pressure means", () => {
    expect([strain(1.2).kind, strain(0.9).kind, strain(0).kind, strain(null).kind]).toEqual(["bad", "wait", "good", "faint"]);
    expect([ratio(1.234), ratio(null)]).toEqual(["1.23", "–"]);
  });
});

const replay: Replay = {
  id: 1, at: "", policy_then: "allpass", policy_now: "allpass", same: true, caveat: null, both: [{ kind: "start", job_id: "job_1", node_id: null, offer: null, price_per_hour: null, reason: "" }],
  only_then: [], only_now: [], waits: [], unchanged_waits: 0, others: { both: 2, only_then: 0, only_now: 0, waits: 0 }, signals_then: { p: 1, C: 2 }, signals_now: { p: 1.5, C: 2 },
};

describe("replays", () => {
  it("tells what was measured differently", () => {
    expect(differences(replay)).toEqual([{ name: "pressure p", then: 1, now: 1.5 }]);
  });
  it("counts what was planned and not tried", () => {
    expect(droppedOf({ actions: { start: 2 } }, replay)).toBe(1);
    expect(droppedOf({ actions: { start: 5 } }, replay)).toBe(0);
  });
  it("reads rules and names what is none", () => {
    expect(rulesOf("move_gain=1.5, patience_ms=30000")).toEqual({ rules: { move_gain: 1.5, patience_ms: 30_000 }, wrong: null });
    expect(rulesOf("move_gain").wrong).toBe("move_gain");
    expect(rulesOf("move_gain=").wrong).toBe("move_gain=");
    expect(rulesOf("  ").wrong).toBeNull();
  });
  it("has a command that does the same", () => {
    expect(commandOf(7, "hpa", { move_gain: 2 })).toBe("allpass replay 7 --policy hpa --set move_gain=2");
    expect(commandOf(7, null, {})).toBe("allpass replay 7");
  });
});

describe("the rest", () => {
  it("finds the cheapest price of a provider", () => {
    const price = (lowest: number) => ({ tier: "serverless", gpu_type: "T4", offers: 1, lowest, highest: 9 });
    expect(cheapestOf({ prices: [price(3), price(2)] })?.lowest).toBe(2);
    expect(cheapestOf({ prices: [] })).toBeNull();
  });
  it("tells the answer of a healthy or sick service from an error", () => {
    expect(isHealth({ status: "degraded", parts: {}, version: "", degraded: [] })).toBe(true);
    expect(isHealth({ error: {} })).toBe(false);
    expect(isHealth(null)).toBe(false);
  });
});
