/** Which rows of a long list are drawn: those one sees, and some beyond on both sides. Pure. */

export interface Range {
  first: number;
  end: number; // the first that is not drawn
}

export function rangeOf(top: number, height: number, rowHeight: number, count: number, beyond = 8): Range {
  const seen = Math.floor(Math.max(0, top) / rowHeight);
  const first = Math.max(0, Math.min(seen - beyond, count));
  const end = Math.min(count, Math.ceil((Math.max(0, top) + height) / rowHeight) + beyond);
  return { first, end: Math.max(first, end) };
}

/** Where to scroll to, so that a row is seen whole; null where it is already. */
export function topToShow(index: number, top: number, height: number, rowHeight: number): number | null {
  const start = index * rowHeight;
  if (start < top) return start;
  if (start + rowHeight > top + height) return start + rowHeight - height;
  return null;
}

/** What one looks at: the first row that is seen, and how much of it has gone by. */
export interface Anchor {
  key: string;
  index: number;
  offset: number;
}

export function anchorAt(top: number, rowHeight: number, keys: (index: number) => string | undefined): Anchor | null {
  if (top <= 0) return null; // at the very top one wants to see what is new
  const index = Math.floor(top / rowHeight);
  const key = keys(index);
  return key === undefined ? null : { key, index, offset: top - index * rowHeight };
}

/** Where the same row is now, though rows above it came or went; null where it is gone. */
export function topOf(anchor: Anchor, rowHeight: number, count: number, keys: (index: number) => string | undefined): number | null {
  const found = near(anchor.index, count, (index) => keys(index) === anchor.key);
  return found === null ? null : found * rowHeight + anchor.offset;
}

/** The index that fits, looked for from `start` outwards: rows seldom move far. */
function near(start: number, count: number, fits: (index: number) => boolean): number | null {
  for (let away = 0; away <= Math.max(start, count - start); away += 1) {
    if (start + away < count && fits(start + away)) return start + away;
    if (away && start - away >= 0 && start - away < count && fits(start - away)) return start - away;
  }
  return null;
}
