/** Lines over one axis, as the chart takes them: one row of x for all, and null where a line has no point. Pure. */

export interface Line {
  label: string;
  points: readonly (readonly [x: number, y: number])[]; // by x, rising
  colour: string; // a variable of the style sheet: "--link"
  faint?: boolean; // drawn thin, to compare with
}

export type Columns = [number[], ...(number | null | undefined)[][]];

/** `log`: what is not above zero has no place on such an axis. A gap is undefined: the line goes on over it. */
export function columnsOf(lines: readonly Line[], log = false): Columns {
  const all = [...new Set(lines.flatMap((line) => line.points.map(([x]) => x)))].sort((a, b) => a - b);
  const index = new Map(all.map((x, at) => [x, at]));
  const columns = lines.map((line) => {
    const column: (number | null | undefined)[] = new Array<undefined>(all.length).fill(undefined);
    for (const [x, y] of line.points) column[index.get(x)!] = Number.isFinite(y) && (!log || y > 0) ? y : null;
    return column;
  });
  return [all, ...columns];
}

/** What each line is at the point nearest below or at x. */
export function valuesAt(columns: Columns, at: number): (number | null)[] {
  return columns.slice(1).map((column) => {
    for (let index = at; index >= 0; index -= 1) {
      const value = column[index];
      if (typeof value === "number") return value;
    }
    return null;
  });
}

/** "loss: from 2.31 at step 1 to 1.08 at step 400, lowest 1.02", for those who do not see the line. */
export function inWords(line: Line, what: string, written: (x: number) => string = String): string {
  const first = line.points[0];
  const last = line.points.at(-1);
  if (!first || !last) return `${line.label}: no points`;
  const lowest = line.points.reduce((low, [, y]) => Math.min(low, y), Infinity);
  return `${line.label}: from ${figures(first[1])} at ${what} ${written(first[0])} to ${figures(last[1])} at ${what} ${written(last[0])}, lowest ${figures(lowest)}`;
}

/** At most five figures, whatever the size. */
export function figures(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2).replace("e+", "e");
  return String(Number(value.toPrecision(size >= 1000 ? 6 : 4)));
}
