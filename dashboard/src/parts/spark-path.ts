/** The line of a small chart, as the `d` of an SVG path. Pure. Gaps (not finite) are left out. */

export function sparkPath(values: readonly number[], width: number, height: number, margin = 1.5): string {
  const finite = values.filter(Number.isFinite);
  if (finite.length < 2) return "";
  const low = Math.min(...finite);
  const span = Math.max(...finite) - low;
  const step = (width - 2 * margin) / (values.length - 1);
  let path = "";
  values.forEach((value, at) => {
    if (!Number.isFinite(value)) return;
    const share = span ? (value - low) / span : 0.5;
    const y = height - margin - share * (height - 2 * margin);
    path += `${path ? "L" : "M"}${round(margin + at * step)} ${round(y)}`;
  });
  return path;
}

function round(x: number): number {
  return Math.round(x * 10) / 10;
}
