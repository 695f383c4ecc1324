import { describe, expect, it } from "vitest";

import { barOf, whatOf } from "./budget-bars";
import { forecastOf, groupsOf, inOrder, inWords, scaleOf, stretchesOf } from "./groups";
import { asDay, asked, commandOf, rangeOf } from "./range";
import type { Payer, UsageLine } from "./shapes";

const NOW = Date.parse("2026-12-11T12:00:00Z");
const range = (query: string, now = NOW) => rangeOf(new URLSearchParams(query), now);
const line = (key: string | null, payer: Payer, cost: number, name: string | null = null): UsageLine => ({ key, payer, cost, name, gpu_ms: cost * 2 });

describe("the days that count", () => {
  it("are thirty unless one says otherwise", () => expect(range("range=evil")).toEqual({ preset: "30d", from: "2026-11-12", to: null }));
  it("may be of a month, in any month", () => {
    expect(range("range=month")).toEqual({ preset: "month", from: "2026-12-01", to: null });
    expect(range("range=last", Date.parse("2026-01-31T23:00:00Z"))).toEqual({ preset: "last", from: "2025-12-01", to: "2025-12-31" });
  });
  it("may be one's own, in either order", () => expect(range("from=2026-12-05&to=2026-12-01")).toEqual({ preset: null, from: "2026-12-01", to: "2026-12-05" }));
  it("are days of the calendar", () => expect(["2026-02-29", "2028-02-29", "x", "2026-1-1", null].map(asDay)).toEqual([null, "2028-02-29", null, null, null]));
  it("are asked for with the last one whole", () => {
    expect(asked(range("range=last"))).toEqual({ from: "2026-11-01T00:00:00Z", to: "2026-12-01T00:00:00Z" });
    expect(asked(range("range=all"))).toEqual({ from: null, to: null });
  });
  it("tell a job without a key from one without a label", () => {
    expect(groupsOf([line(null, "run", 1), line(null, "idle", 2)], "no key was noted").map((one) => one.name)).toEqual(["idle machines", "no key was noted"]);
  });
  it("are a command where it has no end", () => {
    expect(commandOf(range("range=7d"), "app")).toBe("allpass cost --by app --since 2026-12-05T00:00Z");
    expect(commandOf(range("range=all"), "label:my team")).toBe("allpass cost --by 'label:my team'");
    expect(commandOf(range("range=last"), "app")).toBeNull();
  });
});

it("has one group for each key, and what is nobody's apart", () => {
  const groups = groupsOf([line("a", "run", 5, "A"), line("a", "idle", 3), line(null, "boot", 1), line(null, "orphan", 9)]);
  expect(groups.map(({ name, cost }) => [name, cost])).toEqual([["machines nobody owned", 9], ["A", 8], ["booting, for no job yet", 1]]);
  expect(groups[1]!.shares).toEqual({ run: 5, boot: 0, idle: 3, orphan: 0 });
});

describe("the chart of days", () => {
  it("has no gaps", () => {
    const found = stretchesOf([line("2026-12-01", "run", 2), line("2026-12-03", "idle", 1)], "2026-12-01", "2026-12-04");
    expect(found.map((one) => one.cost)).toEqual([2, 0, 1, 0]);
  });
  it("begins with the first day that cost, where no other is given", () => {
    expect(stretchesOf([line("2026-12-03", "run", 1), line("2026-12-02", "run", 1)], null, "2026-12-04").map((one) => one.from)).toEqual(["2026-12-02", "2026-12-03", "2026-12-04"]);
    expect(stretchesOf([], null, "2026-12-04")).toEqual([]);
  });
  it("has weeks from Monday, then months, where days are too many", () => {
    const weeks = stretchesOf([line("2026-09-07", "run", 1), line("2026-09-13", "run", 1)], "2026-09-02", "2026-12-11");
    expect(weeks.slice(0, 2).map(({ from, to, cost }) => [from, to, cost])).toEqual([["2026-09-02", "2026-09-06", 0], ["2026-09-07", "2026-09-13", 2]]);
    expect(stretchesOf([], "2024-01-15", "2026-12-11").at(-1)).toMatchObject({ from: "2026-12-01", to: "2026-12-11" });
  });
  it("is said in words", () => {
    expect(inWords(stretchesOf([line("2026-12-01", "run", 2)], "2026-12-01", "2026-12-02"), String)).toBe("2 from 2026-12-01 to 2026-12-02; the most, 2, on 2026-12-01.");
    expect(inWords([], String)).toBe("Nothing was spent.");
  });
  it("has a round scale", () => {
    expect(scaleOf(73)).toEqual({ top: 80, ticks: [20, 40, 60, 80] });
    expect(scaleOf(0).ticks).toEqual([]);
    for (const most of [1, 3, 9.9, 10, 11, 249, 1e6]) expect(scaleOf(most).top).toBeGreaterThanOrEqual(most);
  });
});

it("foresees the month by the days so far, once there are some", () => {
  expect(forecastOf(21, NOW)).toEqual({ month: "December 2026", daysSoFar: 10.5, cost: 62 });
  expect(forecastOf(21, Date.parse("2026-12-01T03:00:00Z")).cost).toBeNull();
});

describe("a budget", () => {
  it("is a bar as long as what may be spent, or is", () => {
    expect(barOf({ amount: 100, spent: 20, foreseen: 50 })).toEqual({ spent: 0.2, foreseen: 0.5, most: 1 });
    expect(barOf({ amount: 100, spent: 100, foreseen: 1000 })).toEqual({ spent: 100 / 150, foreseen: 1, most: 100 / 150 });
    expect(barOf({ amount: 0, spent: 0, foreseen: 0 })).toEqual({ spent: 1, foreseen: 1, most: 1 });
  });
  it("says what it bounds", () => {
    expect(whatOf({ scope: "project", period: "day", provider: "vast" }, "ci")).toBe("A day at vast, jobs of the key ci");
    expect(whatOf({ scope: "installation", period: "month", provider: null }, null)).toBe("A month of all projects");
  });
});

it("has numbers of GPUs in their order, and what had none last", () => {
  const lines = [line(null, "boot", 9), line("16", "run", 1), line("2", "run", 7), line("10", "run", 8), line("2", "idle", 1)];
  expect(inOrder(groupsOf(lines), "size").map(({ key, cost }) => [key, cost])).toEqual([["2", 8], ["10", 8], ["16", 1], [null, 9]]);
  expect(inOrder(groupsOf(lines), "job").map(({ key }) => key)).toEqual([null, "10", "2", "16"]);
});

it("names the job of which it tells", () => {
  const range = { preset: null, from: "2026-11-01", to: null };
  expect(commandOf(range, "size", "job_1")).toBe("allpass cost --by size --job job_1 --since 2026-11-01T00:00Z");
  expect(commandOf(range, "size", "a'b")).toBe("allpass cost --by size --job 'a'\\''b' --since 2026-11-01T00:00Z");
});
