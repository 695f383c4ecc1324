import { sparkPath } from "./spark-path";
import "./spark.css";

/** A small line without axes: what it does at a glance. `label` says it to screen readers. */
export function Spark({ values, label, width = 96, height = 26 }: { values: readonly number[]; label: string; width?: number; height?: number }) {
  const path = sparkPath(values, width, height);
  if (!path) return <span class="spark" />;
  return (
    <svg class="spark" role="img" aria-label={label} width={width} height={height} viewBox={`0 0 ${width} ${height}`}>
      <path d={path} />
    </svg>
  );
}
