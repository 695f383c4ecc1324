/** What was spent and on what, what may be spent, and what the month will come to. */

import { useMemo } from "preact/hooks";

import { get } from "../../api/client";
import { useReading } from "../../parts/reading";
import { route } from "../../route";
import { Budgets } from "./budgets";
import { ByGroup } from "./by-group";
import { Days } from "./days";
import { Figures } from "./figures";
import { RangeBar } from "./range-bar";
import { asked, dayOf, rangeOf } from "./range";
import type { Usage } from "./shapes";
import "./costs.css";

const ANEW_MS = 60_000;
const MOST_LINES = 1000;

export function Costs() {
  const query = route.value.query.toString();
  const today = dayOf(Date.now()); // drawn again every minute: after midnight it is another one
  const range = useMemo(() => rangeOf(new URLSearchParams(query), Date.now()), [query, today]);
  const { from, to } = asked(range);
  const days = useReading(`usage day ${from} ${to}`, (signal) => get<Usage>("v1/usage", { query: { group_by: "day", from, to, limit: MOST_LINES }, signal }), ANEW_MS);
  return (
    <div class="costs-page">
      <h1>Costs</h1>
      <RangeBar range={range} today={today} />
      <Figures days={days} />
      <div class="costs-columns">
        <section aria-labelledby="days"><h2 id="days">Day by day</h2><Days reading={days} range={range} today={today} /></section>
        <section aria-labelledby="budgets"><h2 id="budgets">Budgets</h2><Budgets /></section>
      </div>
      <section aria-labelledby="by"><h2 id="by">What it was spent on</h2><ByGroup range={range} query={new URLSearchParams(query)} /></section>
    </div>
  );
}
