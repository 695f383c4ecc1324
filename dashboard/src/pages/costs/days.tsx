/** What each day cost, as columns. The table below says the same by number, grouped by day. */

import { useMemo, useState } from "preact/hooks";

import { money } from "../../format";
import { Empty } from "../../parts/empty";
import { Failure } from "../../parts/failure";
import { Loading } from "../../parts/loading";
import type { Reading } from "../../parts/reading";
import { setQuery } from "../../route";
import { inWords, payersOf, scaleOf, stretchesOf, stretchName, type Stretch } from "./groups";
import { PayerKey, PAYER_WORDS } from "./payers";
import type { Range } from "./range";
import { PAYERS, type Usage } from "./shapes";

export function Days({ reading: { value, error, again }, range, today }: { reading: Reading<Usage>; range: Range; today: string }) {
  const to = range.to && range.to < today ? range.to : today;
  const stretches = useMemo(() => (value ? stretchesOf(value.lines, range.from, to) : []), [value, range.from, to]);
  if (!value) return <div class="days-place">{error ? <Failure error={error} again={again} /> : <Loading what="Reading the ledger" />}</div>;
  if (!value.cost) return <div class="days-place"><Empty title="Nothing was spent in these days" /></div>;
  return (
    <>
      <Columns stretches={stretches} used={value} />
      {error && <p class="wait" role="status">Not up to date: {error.message}</p>}
      {value.rest.lines > 0 && <p class="faint small-text">{money(value.rest.cost)} of other days are not drawn: choose fewer days.</p>}
    </>
  );
}

function Columns({ stretches, used }: { stretches: readonly Stretch[]; used: Usage }) {
  const [under, setUnder] = useState<number | null>(null);
  const { top, ticks } = scaleOf(Math.max(...stretches.map((one) => one.cost), 0));
  const every = Math.ceil(stretches.length / 6);
  return (
    <figure class="days">
      <figcaption><Said stretch={under === null ? null : stretches[under] ?? null} /> <PayerKey payers={payersOf(used)} /></figcaption>
      <div class="days-plot" role="img" aria-label={`What was spent. ${inWords(stretches, money)}`} onPointerLeave={() => setUnder(null)}>
        {ticks.map((tick) => <div key={tick} class="days-tick" style={{ bottom: `${(100 * tick) / top}%` }}><span>{money(tick)}</span></div>)}
        <div class="days-columns">
          {stretches.map((one, at) => (
            <div key={one.from} class={`days-column ${under === at ? "under" : ""}`} onPointerEnter={() => setUnder(at)}>
              {PAYERS.map((payer) => one.shares[payer] > 0 && <i key={payer} class={`payer ${payer}`} style={{ height: `${(100 * one.shares[payer]) / top}%` }} />)}
            </div>
          ))}
        </div>
      </div>
      <div class="days-axis faint" aria-hidden="true">
        {stretches.map((one, at) => at % every === 0 && <span key={one.from} style={{ left: `${(100 * at) / stretches.length}%` }}>{shortDay(one.from)}</span>)}
      </div>
      <p class="days-more small-text"><button type="button" class="link" onClick={() => setQuery({ by: "day" }, { replace: false })}>The days by number</button></p>
    </figure>
  );
}

function Said({ stretch }: { stretch: Stretch | null }) {
  if (!stretch) return <span class="faint">Point at a day to see what it cost.</span>;
  const parts = PAYERS.filter((payer) => stretch.shares[payer] > 0 && payer !== "run").map((payer) => `${money(stretch.shares[payer])} ${PAYER_WORDS[payer].short}`);
  return <span><b>{money(stretch.cost)}</b> {stretchName(stretch)}{parts.length > 0 && <span class="faint">, of that {parts.join(", ")}</span>}</span>;
}

function shortDay(day: string): string {
  return new Date(`${day}T00:00:00Z`).toLocaleString("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });
}
