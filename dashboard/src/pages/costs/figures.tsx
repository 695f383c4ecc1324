import { get } from "../../api/client";
import { money, percent, plural } from "../../format";
import { useReading, type Reading } from "../../parts/reading";
import { forecastOf } from "./groups";
import { asked, rangeOf } from "./range";
import type { Usage } from "./shapes";

const ANEW_MS = 60_000;

/** The range in one sum, and the month with what it will come to. Each stands though the other could not be read. */
export function Figures({ days }: { days: Reading<Usage> }) {
  const read = async (signal: AbortSignal) => {
    const at = Date.now();
    const { from } = asked(rangeOf(new URLSearchParams("range=month"), at));
    return { at, spent: (await get<Usage>("v1/usage", { query: { group_by: "tier", from, limit: 1 }, signal })).cost };
  };
  const month = useReading("usage month", read, ANEW_MS);
  const used = days.value;
  const forecast = month.value && forecastOf(month.value.spent, month.value.at);
  const why = forecast && `Linear: ${forecast.month} goes on as its ${forecast.daysSoFar.toFixed(1)} days so far (of UTC)`;
  return (
    <>
      <dl class="figures costs-figures">
        <div><dt>In these days</dt><dd>{used ? money(used.cost) : "–"}{used?.so_far && <small class="faint"> so far</small>}</dd></div>
        <div title="For machines that nobody held: after a job had left them, or before any came">
          <dt>Idle of that</dt><dd class={used?.idle_cost ? "wait" : ""}>{used ? money(used.idle_cost) : "–"}{used && used.cost > 0 && <small class="faint"> {percent(used.idle_cost / used.cost)}</small>}</dd>
        </div>
        <div><dt>{forecast ? `${forecast.month} so far` : "This month so far"}</dt><dd>{money(month.value?.spent)}</dd></div>
        <div><dt>Forecast of the month</dt><dd>{forecast?.cost === null ? <small class="faint">too early to tell</small> : money(forecast?.cost)}</dd></div>
      </dl>
      <p class="faint small-text costs-note">
        {month.error ? <span class="wait">The month could not be read: {month.error.message} </span> : why ? `${why}. ` : "\u00a0"}
        {used?.so_far && `${plural(used.open_nodes, "machine runs", "machines run")}: the cost grows.`}
      </p>
    </>
  );
}
