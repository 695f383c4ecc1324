import { describe, expect, it } from "vitest";

import type { Decision } from "../../api/control";
import { inWords, lineOf } from "./course";

const decision = (at: string, pressure: number | null): Decision => ({
  id: 1, at, policy: "allpass", trigger: "tick", pressure, serverless_budget_s: null, capacity_gpus: null, demand_gpu_s: null,
  jobs_waiting: 0, nodes: {}, actions: {}, reasons: [], duration_ms: 3,
});

describe("the course of the decisions", () => {
  it("goes from the oldest to the newest, in seconds, over what was measured", () => {
    const told = [decision("1970-01-01T00:00:03Z", 1.5), decision("1970-01-01T00:00:02Z", null), decision("1970-01-01T00:00:01Z", 0.5)];
    expect(lineOf(told, "p", "--link", (one) => one.pressure)?.points).toEqual([[1, 0.5], [3, 1.5]]);
  });

  it("has no line of what the policy does not measure", () => {
    expect(lineOf([decision("1970-01-01T00:00:03Z", null)], "p", "--link", (one) => one.pressure)).toBeNull();
  });

  it("says what was chosen", () => {
    expect(inWords({ start: 1, release: 3, assign: 0 })).toBe("3 release, 1 start");
    expect(inWords({})).toBe("nothing");
  });
});
