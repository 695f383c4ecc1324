interface MeterProps {
  used: number;
  of: number | null; // null: no limit
  text: (value: number) => string;
  label: string; // what is used: "spent today"
  foreseen?: number; // at the end, a mark on the bar
}

/** How much of a limit is used, as a bar and as numbers. */
export function Meter({ used, of, text, label, foreseen }: MeterProps) {
  if (of === null) return <span class="number">{text(used)} <span class="faint">{label}; no limit</span></span>;
  const share = shareOf(used, of);
  const kind = share >= 1 ? "bad" : share >= 0.8 ? "near" : "";
  return (
    <span class="meter">
      <span class="meter-bar" role="img" aria-label={`${text(used)} of ${text(of)} ${label}`}>
        <span class={`meter-fill ${kind}`} style={{ width: `${share * 100}%` }} />
        {foreseen !== undefined && <span class="meter-mark" style={{ left: `${shareOf(foreseen, of) * 100}%` }} title={`${text(foreseen)} foreseen at its end`} />}
      </span>
      <span class="number">{text(used)} <span class="faint">of</span> {text(of)}</span>
    </span>
  );
}

export function shareOf(used: number, of: number): number {
  if (of <= 0) return 1;
  return Math.min(1, Math.max(0, used / of));
}
