import { describe, expect, it } from "vitest";

import { columnsOf, figures, inWords, valuesAt } from "./chart-data";

const a = { label: "a", colour: "--link", points: [[1, 2], [3, 1]] as const };
const b = { label: "b", colour: "--link", points: [[2, 0], [3, -1]] as const };

describe("columnsOf", () => {
  it("puts lines over one axis", () => {
    expect(columnsOf([a, b])).toEqual([[1, 2, 3], [2, undefined, 1], [undefined, 0, -1]]);
  });
  it("leaves out what a log axis cannot show, and what is no number", () => {
    expect(columnsOf([b], true)).toEqual([[2, 3], [null, null]]);
    expect(columnsOf([{ ...a, points: [[1, Number.NaN]] }])).toEqual([[1], [null]]);
  });
  it("stands for nothing, too", () => expect(columnsOf([])).toEqual([[]]));
});

it("says what each line is at a point, or was last", () => expect(valuesAt(columnsOf([a, b]), 1)).toEqual([2, 0]));

it("says a line in words", () => {
  expect(inWords(a, "step")).toBe("a: from 2 at step 1 to 1 at step 3, lowest 1");
  expect(inWords({ ...a, points: [] }, "step")).toBe("a: no points");
});

it("writes values of any size short", () => {
  expect([0, 1.23456, 123456.78, 1.5e9, 2e-5, null, Infinity].map(figures)).toEqual(["0", "1.235", "123457", "1.50e9", "2.00e-5", "–", "Infinity"]);
});
