import { describe, expect, it } from "vitest";

import { bytes, duration, money, percent, plural, relative } from "./format";

describe("money", () => {
  it("has cents, and more digits where it is little", () => {
    expect([12_300_000, 0, 123_456, 5_000, 120, 1_234_567_890].map((one) => money(one))).toEqual(["$12.30", "$0.00", "$0.123", "$0.0050", "$0.0001", "$1,234.57"]);
  });
  it("has a sign, and a dash where nothing is known", () => {
    expect(money(-2_500_000)).toBe("−$2.50");
    expect(money(null)).toBe("–");
  });
});

describe("duration", () => {
  it("has its two largest units", () => {
    expect([42_000, 65_000, 300_000, 900_000, 9_060_000, 273_600_000].map(duration)).toEqual(["42 s", "1 min 5 s", "5 min", "15 min", "2 h 31 min", "3 d 4 h"]);
  });
});

it("tells times from now", () => {
  const now = Date.parse("2026-11-21T00:00:00Z");
  expect(relative("2026-11-20T23:57:00Z", now)).toBe("3 min ago");
  expect(relative("2026-11-21T02:00:00Z", now)).toBe("in 2 h");
  expect(relative("2026-11-21T00:00:01Z", now)).toBe("now");
});

it("writes sizes, shares and counts", () => {
  expect([0, 999, 1500, 850_140, 16_060_000_000].map(bytes)).toEqual(["0 B", "999 B", "1.5 kB", "850 kB", "16.1 GB"]);
  expect(percent(0.426)).toBe("43 %");
  expect([plural(1, "job"), plural(2_000, "job")]).toEqual(["1 job", "2,000 jobs"]);
});
