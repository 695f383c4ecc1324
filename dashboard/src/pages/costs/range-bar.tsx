import { setQuery } from "../../route";
import { PRESETS, type Range } from "./range";

/** The days that count: one of some usual stretches, or from one day to another. All of UTC. */
export function RangeBar({ range, today }: { range: Range; today: string }) {
  const choose = (name: string) => setQuery({ range: name === "30d" ? null : name, from: null, to: null }, { replace: false });
  const own = (changes: { from?: string; to?: string }) => {
    const days = { from: range.from, to: range.to, ...changes };
    setQuery({ range: null, from: days.from || null, to: days.to || null }, { replace: false });
  };
  return (
    <div class="range-bar" role="group" aria-label="The days that count, of UTC">
      <div class="statuses">
        {PRESETS.map(([name, title]) => <button key={name} type="button" aria-pressed={range.preset === name} onClick={() => choose(name)}>{title}</button>)}
      </div>
      <span class="own-days">
        <input type="date" aria-label="First day, UTC" max={range.to ?? today} value={range.from ?? ""} onChange={(event) => own({ from: event.currentTarget.value })} />
        <span class="faint">to</span>
        <input type="date" aria-label="Last day, UTC" min={range.from ?? undefined} max={today} value={range.to ?? today} onChange={(event) => own({ to: event.currentTarget.value })} />
        <span class="faint small-text">UTC</span>
      </span>
    </div>
  );
}
