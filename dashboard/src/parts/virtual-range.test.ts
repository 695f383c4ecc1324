import { describe, expect, it } from "vitest";

import { anchorAt, rangeOf, topOf, topToShow } from "./virtual-range";

describe("rangeOf", () => {
  it("draws what is seen and some beyond", () => {
    expect(rangeOf(1000, 500, 50, 10_000, 4)).toEqual({ first: 16, end: 34 });
  });
  it("stays within the list", () => {
    expect(rangeOf(0, 500, 50, 3)).toEqual({ first: 0, end: 3 });
    expect(rangeOf(9_999_999, 500, 50, 10)).toEqual({ first: 10, end: 10 });
    expect(rangeOf(-80, 500, 50, 10, 0)).toEqual({ first: 0, end: 10 });
    expect(rangeOf(0, 0, 50, 0)).toEqual({ first: 0, end: 0 });
  });
});

describe("topToShow", () => {
  it("moves no further than it has to", () => {
    expect(topToShow(3, 0, 500, 50)).toBeNull();
    expect(topToShow(10, 0, 500, 50)).toBe(50);
    expect(topToShow(2, 300, 500, 50)).toBe(100);
  });
});

describe("an anchor", () => {
  const before = ["a", "b", "c", "d"];
  it("finds its row again after rows came above it", () => {
    const anchor = anchorAt(120, 50, (at) => before[at])!;
    expect(anchor).toEqual({ key: "c", index: 2, offset: 20 });
    const after = ["x", "y", ...before];
    expect(topOf(anchor, 50, after.length, (at) => after[at])).toBe(220);
  });
  it("finds it after rows went", () => {
    const anchor = anchorAt(120, 50, (at) => before[at])!;
    const after = ["c", "d"];
    expect(topOf(anchor, 50, 2, (at) => after[at])).toBe(20);
    expect(topOf(anchor, 50, 1, () => "z")).toBeNull();
  });
  it("is none at the top", () => expect(anchorAt(0, 50, () => "a")).toBeNull());
});
