import { describe, expect, it } from "vitest";

import type { Usage, UsageLine } from "../../api/costs";
import { daysOf, forecast, groupsOf, monthOf } from "./groups";

const line = (key: string | null, payer: string, cost: number): UsageLine => ({ key, name: null, payer, cost, gpu_ms: 10 });

describe("groups of usage", () => {
  it("adds up what one group costs by what it was paid for, the most expensive first", () => {
    const [first, second, ...rest] = groupsOf([line("app_1", "run", 5), line("app_2", "run", 9), line("app_1", "idle", 7)]);
    expect(first).toEqual({ key: "app_1", name: "app_1", cost: 12, gpuMs: 20, byPayer: { run: 5, idle: 7 } });
    expect([second?.key, rest]).toEqual(["app_2", []]);
  });

  it("has a place for what belongs to no group", () => {
    expect(groupsOf([line(null, "idle", 3)])[0]?.name).toBe("without");
  });
});

describe("the days of a month", () => {
  const { begin, end } = monthOf(new Date("2026-02-11T12:00:00Z"));

  it("begins and ends as the ledger counts", () => {
    expect([begin.toISOString(), end.toISOString()]).toEqual(["2026-02-01T00:00:00.000Z", "2026-03-01T00:00:00.000Z"]);
  });

  it("has each day up to now, also those without cost", () => {
    const points = daysOf([line("2026-02-02", "run", 2_500_000)], begin, new Date("2026-02-03T10:00:00Z"));
    expect(points.map(([, dollars]) => dollars)).toEqual([0, 2.5, 0]);
  });

  it("goes on as it did", () => {
    const usage = { cost: 10_000_000 } as Usage;
    expect(forecast(usage, begin, new Date("2026-02-15T00:00:00Z"), end)).toBe(20_000_000);
    expect(forecast(usage, begin, begin, end)).toBe(10_000_000);
  });
});
