import type { TierName } from "../../api/jobs";
import { bytes, count, duration, hourly, money } from "../../format";
import { gpus } from "../../parts/place";
import { barOf, bestOf, layoutInWords, sourceInWords, VERDICTS } from "./options";
import type { PlanOffer, PlanOption } from "./shapes";

export function OptionRow({ option, chosen, tiers }: { option: PlanOption; chosen: boolean; tiers: readonly TierName[] }) {
  const verdict = VERDICTS[option.verdict];
  return (
    <tr class={chosen ? "chosen-row" : ""}>
      <th scope="row">
        <span class="whole">{gpus(option.gpu_type, option.gpu_count)}</span>
        <small><span class={`status ${verdict.kind}`}>{verdict.text}</span>{chosen && <span class="faint"> would be rented</span>}</small>
      </th>
      <td><MemoryBar option={option} /></td>
      <td class="number">{option.step_ms === null ? "–" : stepTime(option.step_ms)}<small class="faint">{sourceInWords(option)}</small></td>
      {tiers.map((tier) => <td key={tier} class="number"><OfferCell offer={bestOf(option.offers, tier)} tier={tier} runs={option.verdict !== "no"} /></td>)}
      <td class="plan-layout">{layoutInWords(option.layout)}{option.exact && <span class="faint"> · run symbolically</span>}{option.calibrated_by > 0 && <span class="faint"> · corrected by {count(option.calibrated_by)} runs</span>}</td>
    </tr>
  );
}

export function stepTime(ms: number): string {
  return ms < 1000 ? `${Math.round(ms)} ms` : ms < 60_000 ? `${(ms / 1000).toFixed(1)} s` : duration(ms);
}

/** What is expected, its bounds as a lighter band, and where the GPU ends. */
export function MemoryBar({ option }: { option: Pick<PlanOption, "process" | "gpu_memory_bytes" | "verdict" | "peak_in"> }) {
  const { process, gpu_memory_bytes, verdict, peak_in } = option;
  const bar = barOf(process, gpu_memory_bytes);
  const words = `${bytes(process.expected)} of ${bytes(gpu_memory_bytes)}`;
  const bounds = `between ${bytes(process.low)} and ${bytes(process.high)}, the most in the ${peak_in} pass`;
  return (
    <div class="memory" title={bounds}>
      <div class="memory-bar" role="img" aria-label={`${words}, ${bounds}`}>
        <i class={`memory-band ${verdict}`} style={{ left: `${bar.low}%`, width: `${bar.high - bar.low}%` }} />
        <i class={`memory-fill ${verdict}`} style={{ width: `${bar.expected}%` }} />
        <i class="memory-end" style={{ left: `${bar.capacity}%` }} />
      </div>
      <span class="number">{words}</span>
    </div>
  );
}

/** What all steps cost there and when they are done; of GPUs that are too small, what they cost by the hour. */
function OfferCell({ offer, tier, runs }: { offer: PlanOffer | null; tier: TierName; runs: boolean }) {
  if (!offer) return <span class="faint" aria-label={`nothing of ${tier} is offered`}>–</span>;
  const { in_time, provider, price_per_hour, price_as_of, price_is_old } = offer;
  const cost = runs ? offer.cost : null;
  const duration_ms = runs ? offer.duration_ms : null;
  return (
    <>
      {cost === null ? hourly(price_per_hour) : <b>{money(cost)}</b>}
      {duration_ms !== null && <span class={`plan-line ${in_time === false ? "bad" : ""}`}>{duration(duration_ms)}{in_time === false && ", too late"}</span>}
      <small class="faint" title={price_as_of ? `its price is of ${price_as_of}` : undefined}>{provider}{cost !== null && ` ${hourly(price_per_hour)}`}{price_is_old && ", old price"}</small>
    </>
  );
}
