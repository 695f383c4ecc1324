import { expect, it } from "vitest";

import type { JobEvent } from "../api/jobs";
import { waitMs } from "./live";
import { joined } from "./live-events";

const event = (position: number): JobEvent => ({ position, at: "", kind: "", message: "", data: {} });

it("waits longer each time, and never long", () => {
  expect([1, 2, 3, 4, 5, 6, 60].map(waitMs)).toEqual([1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
});

it("takes on each event once, in order", () => {
  const before = [event(1), event(2)];
  expect(joined(before, [event(2), event(3)]).map((one) => one.position)).toEqual([1, 2, 3]);
  expect(joined(before, [event(1)])).toBe(before);
  expect(joined([], [event(1)])).toHaveLength(1);
});
