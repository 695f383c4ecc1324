import { expect, it } from "vitest";

import { sparkPath } from "./spark-path";

it("goes from the first value to the last, high values up", () => {
  expect(sparkPath([0, 10], 13, 13)).toBe("M1.5 11.5L11.5 1.5");
});
it("is a level line where all values are one", () => expect(sparkPath([3, 3], 13, 13)).toBe("M1.5 6.5L11.5 6.5"));
it("leaves out what is no number, and draws nothing of less than two", () => {
  expect(sparkPath([0, Number.NaN, 10], 13, 13)).toBe("M1.5 11.5L11.5 1.5");
  expect(sparkPath([1], 13, 13)).toBe("");
  expect(sparkPath([], 13, 13)).toBe("");
});
