/** How a line of the table is laid out: by the width there is. */

import { signal } from "@preact/signals";

export type Layout = "wide" | "middle" | "cards";

const wide = matchMedia("(min-width: 1120px)");
const middle = matchMedia("(min-width: 700px)");

export const layout = signal<Layout>(present());
for (const query of [wide, middle]) query.addEventListener("change", () => (layout.value = present()));

export const HEIGHTS: Record<Layout, number> = { wide: 52, middle: 56, cards: 116 };
export const COLUMNS: Record<Layout, readonly string[]> = {
  wide: ["Status", "Name", "Where", "Steps", "Loss", "Done in", "Deadline", "Spent"],
  middle: ["Status", "Name", "Steps", "Loss", "Done in", "Spent"],
  cards: [],
};

function present(): Layout {
  return wide.matches ? "wide" : middle.matches ? "middle" : "cards";
}
