import "./class-mark.css";

const TITLES: Record<string, string> = {
  guaranteed: "never made to leave for another job",
  spot: "leaves its GPUs when a guaranteed job needs them",
};

/** Whether a job is guaranteed or spot. `spotOnly`: nothing for guaranteed ones, as most are. */
export function ClassMark({ of, spotOnly = false }: { of: string; spotOnly?: boolean }) {
  const known = of === "spot" || (of === "guaranteed" && !spotOnly);
  return known ? <span class={`class-mark ${of}`} title={TITLES[of]}>{of}</span> : null;
}
